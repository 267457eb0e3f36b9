// Interleaved weights: every code, scale and min lies where the layout says, for all types that have one.
#include "quant/packed.h"

#include <gtest/gtest.h>

#include "kernels/kernel_testing.h"

namespace kvart {
namespace {

using testing::Random;
using testing::RandomWeights;

constexpr DType kPackable[] = {DType::kQ5_0, DType::kQ8_0, DType::kQ4_K, DType::kQ6_K, DType::kF16};

struct Group {
  int codes[8][32];
  float scales[8][2], mins[8][2];
};

template <class Block>
Block At(const uint8_t* packed, int64_t index) {
  Block block;
  std::memcpy(&block, packed + index * static_cast<int64_t>(sizeof block), sizeof block);
  return block;
}

// The low nibble or the high one of vector j, byte i.
int Nibble(const uint8_t* qs, int j, int i) {
  return j < 4 ? qs[j * 32 + i] & 15 : qs[(j - 4) * 32 + i] >> 4;
}

// Reads group `b` of 32 columns of row group `g` by the comments of packed.h.
Group ReadGroup(DType type, const uint8_t* packed, int64_t cols, int64_t g, int64_t b) {
  Group group{};
  const int64_t super = g * (cols / 256) + b / 8, plain = g * (cols / 32) + b, in = b % 8;
  for (int r = 0; r < 8; ++r) {
    for (int c = 0; c < 32; ++c) {
      const int j = c / 4, i = r * 4 + c % 4;
      int& code = group.codes[r][c];
      if (type == DType::kQ5_0) {
        const auto block = At<BlockQ5_0X8>(packed, plain);
        code = (Nibble(block.qs, j, i) | (block.qh[i] >> j & 1) << 4) - 16;
        group.scales[r][c / 16] = HalfToFloat(block.d[r]);
      } else if (type == DType::kQ8_0) {
        const auto block = At<BlockQ8_0X8>(packed, plain);
        code = block.qs[j * 32 + i];
        group.scales[r][c / 16] = HalfToFloat(block.d[r]);
      } else if (type == DType::kQ4_K) {
        const auto block = At<BlockQ4_KX8>(packed, super);
        code = Nibble(block.qs[in], j, i);
        group.scales[r][c / 16] = HalfToFloat(block.d[r]) * block.scales[in][r];
        group.mins[r][c / 16] = -HalfToFloat(block.dmin[r]) * block.mins[in][r];
      } else {
        const auto block = At<BlockQ6_KX8>(packed, super);
        code = (Nibble(block.ql[in], j, i) | (block.qh[in][j / 4 * 32 + i] >> (2 * (j % 4)) & 3) << 4) - 32;
        group.scales[r][c / 16] = HalfToFloat(block.d[r]) * static_cast<float>(block.scales[2 * in + c / 16][r]);
      }
    }
  }
  return group;
}

TEST(PackedTest, OnlySomeTypes) {
  for (const DType type : testing::kAllTypes) {
    bool packable = false;
    for (const DType other : kPackable) packable = packable || type == other;
    EXPECT_EQ(CanPackX8(type), packable) << Info(type).name;
  }
}

TEST(PackedTest, CodesAndScales) {
  Random random(1);
  constexpr int64_t kCols = 512;
  for (const DType type : kPackable) {
    if (IsFloat(type)) continue;
    for (const int64_t rows : {1, 8, 19}) {
      const std::vector<uint8_t> weights = RandomWeights(random, type, rows, kCols);
      const size_t row_bytes = weights.size() / static_cast<size_t>(rows);
      const int64_t groups = (rows + 7) / 8;
      std::vector<uint8_t> packed(static_cast<size_t>(PackedBytes(type, Packing::kX8, rows, kCols)), 0xee);
      PackX8(type, weights.data(), rows, kCols, 0, groups, packed.data());
      for (int64_t b = 0; b < kCols / 32; ++b) {
        for (int64_t row = 0; row < groups * 8; ++row) {
          const Group group = ReadGroup(type, packed.data(), kCols, row / 8, b);
          const int r = static_cast<int>(row % 8);
          int8_t codes[32] = {};
          float scales[2] = {}, mins[2] = {};
          if (row < rows) {
            UnpackCodes(type, weights.data() + static_cast<size_t>(row) * row_bytes, b, 1, codes, scales, mins);
          }
          for (int h = 0; h < 2; ++h) {
            ASSERT_EQ(group.scales[r][h], scales[h]) << Info(type).name << " row " << row << " group " << b;
            ASSERT_EQ(group.mins[r][h], mins[h]) << Info(type).name << " row " << row << " group " << b;
          }
          for (int c = 0; c < 32 && row < rows; ++c) {
            ASSERT_EQ(group.codes[r][c], codes[c])
                << Info(type).name << " row " << row << " group " << b << " column " << c;
          }
        }
      }
    }
  }
}

TEST(PackedTest, Halves) {
  Random random(2);
  const std::vector<uint8_t> weights = RandomWeights(random, DType::kF16, 11, 96);
  std::vector<uint8_t> packed(static_cast<size_t>(PackedBytes(DType::kF16, Packing::kX8, 11, 96)), 0xee);
  ASSERT_EQ(packed.size(), 2u * 96 * 8 * 2);
  PackX8(DType::kF16, weights.data(), 11, 96, 0, 2, packed.data());
  for (size_t row = 0; row < 16; ++row) {
    for (size_t c = 0; c < 96; ++c) {
      uint16_t got = 0, want = 0;
      std::memcpy(&got, &packed[((row / 8 * 96 + c) * 8 + row % 8) * 2], 2);
      if (row < 11) std::memcpy(&want, &weights[(row * 96 + c) * 2], 2);
      ASSERT_EQ(got, want) << row << " " << c;
    }
  }
}

TEST(PackedTest, GroupsOneByOne) {
  Random random(3);
  for (const DType type : kPackable) {
    const std::vector<uint8_t> weights = RandomWeights(random, type, 30, 256);
    const size_t bytes = static_cast<size_t>(PackedBytes(type, Packing::kX8, 30, 256));
    std::vector<uint8_t> at_once(bytes, 0xee), one_by_one(bytes, 0x11);
    PackX8(type, weights.data(), 30, 256, 0, 4, at_once.data());
    for (const int64_t g : {2, 0, 3, 1}) PackX8(type, weights.data(), 30, 256, g, g + 1, one_by_one.data());
    EXPECT_EQ(at_once, one_by_one) << Info(type).name;
  }
}

}  // namespace
}  // namespace kvart

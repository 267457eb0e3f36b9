// Interleaved weights: every code, scale and min lies where the layout says, for all types.
#include "quant/packed.h"

#include <gtest/gtest.h>

#include "kernels/kernel_testing.h"

namespace kvart {
namespace {

using testing::Random;
using testing::RandomWeights;

struct Group {
  int codes[8][32];
  float scales[8][2], mins[8][2];
};

// The code of row r, column c, as the comments of packed.h say.
template <class Planes>
int StoredCode(const Planes& in, int r, int c) {
  const int j = c / 4, i = r * 4 + c % 4;
  int code = 0, bits = 0;
  const auto add = [&](int part, int width) {
    code |= (part & ((1 << width) - 1)) << bits;
    bits += width;
  };
  if constexpr (HasQ8<Planes>) code = in.q8[j][i];
  if constexpr (HasQ4<Planes>) add(j < 4 ? in.q4[j][i] : in.q4[j - 4][i] >> 4, 4);
  if constexpr (HasQ2<Planes>) add(in.q2[j % 2][i] >> 2 * (j / 2), 2);
  if constexpr (HasQ1<Planes>) add(in.q1[i] >> j, 1);
  return code;
}

template <DType kType, class Planes>
int Code(const Planes& in, int r, int c) {
  const int stored = StoredCode(in, r, c);
  return HasLevels(kType) ? kIq4Values[stored] : stored - ZeroCode(kType);
}

// Group `b` of 32 columns of row group `g`.
template <DType kType>
Group ReadGroup(const uint8_t* packed, int64_t cols, int64_t g, int64_t b) {
  Group group{};
  BlockX8<kType> block;
  constexpr int64_t kColumns = kColumnsX8<BlockX8<kType>>;
  const int64_t index = g * (cols / kColumns) + b * 32 / kColumns;
  std::memcpy(&block, packed + index * static_cast<int64_t>(sizeof block), sizeof block);
  for (int r = 0; r < 8; ++r) {
    const float d = HalfToFloat(block.d[r]);
    for (int c = 0; c < 32; ++c) {
      const int h = c / 16;
      if constexpr (HasGroups<BlockX8<kType>>) {
        const auto& in = block.groups[b % 8];
        const int s = h * static_cast<int>(std::size(in.scales)) / 2;
        int scale = in.scales[s][r], min = 0;
        if constexpr (kType == DType::kQ2_K) {
          min = scale >> 4;
          scale &= 15;
        }
        if constexpr (requires { in.mins; }) min = in.mins[s][r];
        group.codes[r][c] = Code<kType>(in, r, c);
        group.scales[r][h] = d * static_cast<float>(scale);
        if constexpr (requires { block.dmin; })
          group.mins[r][h] = -HalfToFloat(block.dmin[r]) * static_cast<float>(min);
      } else {
        group.codes[r][c] = Code<kType>(block, r, c);
        group.scales[r][h] = d;
        if constexpr (requires { block.m; }) group.mins[r][h] = HalfToFloat(block.m[r]);
      }
    }
  }
  return group;
}

// Packs and compares every code, scale and min with those of the rows. fill: as in RandomWeights.
template <DType kType>
void CheckPacking(int64_t rows, int fill) {
  Random random(static_cast<uint32_t>(rows));
  constexpr int64_t kCols = 512;
  const std::vector<uint8_t> weights = RandomWeights(random, kType, rows, kCols, fill);
  const size_t row_bytes = weights.size() / static_cast<size_t>(rows);
  const int64_t groups = (rows + 7) / 8;
  std::vector<uint8_t> packed(static_cast<size_t>(PackedBytes(kType, Packing::kX8, rows, kCols)), 0xee);
  PackX8(kType, weights.data(), rows, kCols, 0, groups, packed.data());
  for (int64_t row = 0; row < groups * 8; ++row) {
    for (int64_t b = 0; b < kCols / 32; ++b) {
      const Group group = ReadGroup<kType>(packed.data(), kCols, row / 8, b);
      const int r = static_cast<int>(row % 8);
      int8_t codes[32] = {};
      float scales[2] = {}, mins[2] = {};
      if (row < rows) {
        UnpackCodes(kType, weights.data() + static_cast<size_t>(row) * row_bytes, b, 1, codes, scales, mins);
      }
      for (int h = 0; h < 2; ++h) {
        ASSERT_EQ(group.scales[r][h], scales[h]) << "row " << row << " group " << b;
        ASSERT_EQ(group.mins[r][h], mins[h]) << "row " << row << " group " << b;
      }
      for (int c = 0; c < 32 && row < rows; ++c) {
        ASSERT_EQ(group.codes[r][c], codes[c]) << "row " << row << " group " << b << " column " << c;
      }
    }
  }
}

template <DType kType>
void CheckType() {
  for (const int64_t rows : {1, 8, 19}) {
    for (const int fill : {-1, 0x00, 0xff, 0x80, 0x7f}) {  // random bytes, or one byte in all codes and small scales
      SCOPED_TRACE(std::string(Info(kType).name) + ", rows " + std::to_string(rows) + ", fill " + std::to_string(fill));
      CheckPacking<kType>(rows, fill);
    }
  }
}

TEST(PackedTest, CodesAndScales) {
  CheckType<DType::kQ4_0>();
  CheckType<DType::kQ4_1>();
  CheckType<DType::kQ5_0>();
  CheckType<DType::kQ5_1>();
  CheckType<DType::kQ8_0>();
  CheckType<DType::kQ2_K>();
  CheckType<DType::kQ3_K>();
  CheckType<DType::kQ4_K>();
  CheckType<DType::kQ5_K>();
  CheckType<DType::kQ6_K>();
  CheckType<DType::kIQ4_NL>();
  CheckType<DType::kIQ4_XS>();
}

// A token's speed is bytes over bandwidth: packing adds next to none.
TEST(PackedTest, AsManyBytesAsTheFile) {
  for (const DType type : testing::kAllTypes) {
    const double file = static_cast<double>(PackedBytes(type, Packing::kRows, 64, 1024));
    const double packed = static_cast<double>(PackedBytes(type, Packing::kX8, 64, 1024));
    const double most = type == DType::kQ3_K ? 1.04 : 1.03;  // scales of six bits as bytes
    EXPECT_GE(packed, file) << Info(type).name;
    EXPECT_LE(packed, most * file) << Info(type).name;
  }
  EXPECT_EQ(PackedBytes(DType::kQ4_0, Packing::kX8, 9, 1024), PackedBytes(DType::kQ4_0, Packing::kX8, 16, 1024));
}

TEST(PackedTest, Numbers) {
  Random random(2);
  for (const DType type : {DType::kF32, DType::kF16, DType::kBF16}) {
    const size_t width = static_cast<size_t>(Info(type).block_bytes);
    const std::vector<uint8_t> weights = RandomWeights(random, type, 11, 96);
    std::vector<uint8_t> packed(static_cast<size_t>(PackedBytes(type, Packing::kX8, 11, 96)), 0xee);
    ASSERT_EQ(packed.size(), 2 * 96 * 8 * width);
    PackX8(type, weights.data(), 11, 96, 0, 2, packed.data());
    for (size_t row = 0; row < 16; ++row) {
      for (size_t c = 0; c < 96; ++c) {
        uint32_t got = 0, want = 0;
        std::memcpy(&got, &packed[((row / 8 * 96 + c) * 8 + row % 8) * width], width);
        if (row < 11) std::memcpy(&want, &weights[(row * 96 + c) * width], width);
        ASSERT_EQ(got, want) << Info(type).name << " " << row << " " << c;
      }
    }
  }
}

TEST(PackedTest, GroupsOneByOne) {
  Random random(3);
  for (const DType type : testing::kAllTypes) {
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

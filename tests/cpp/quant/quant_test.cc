// The integer view against the decode, the encoders' error bounds, and what they refuse.
#include "quant/quant.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <random>
#include <vector>

#include "quant/half.h"

namespace kvart {
namespace {

constexpr DType kQuantized[] = {DType::kQ4_0, DType::kQ4_1, DType::kQ5_0, DType::kQ5_1, DType::kQ8_0,   DType::kQ2_K,
                                DType::kQ3_K, DType::kQ4_K, DType::kQ5_K, DType::kQ6_K, DType::kIQ4_NL, DType::kIQ4_XS};

// Offsets of the halves in a block.
std::vector<int> HalvesOf(DType t) {
  switch (t) {
    case DType::kQ4_1:
    case DType::kQ5_1:
    case DType::kQ4_K:
    case DType::kQ5_K: return {0, 2};
    case DType::kQ2_K: return {80, 82};
    case DType::kQ3_K: return {108};
    case DType::kQ6_K: return {208};
    default: return {0};
  }
}

// Random blocks with finite scales.
std::vector<uint8_t> RandomRow(DType type, int64_t n, uint32_t seed) {
  std::mt19937 rng(seed);
  std::vector<uint8_t> row(RowBytes(type, static_cast<uint64_t>(n)));
  for (uint8_t& b : row) b = static_cast<uint8_t>(rng());
  const auto block_bytes = static_cast<size_t>(Info(type).block_bytes);
  for (size_t block = 0; block < row.size(); block += block_bytes) {
    for (int at : HalvesOf(type)) {
      const uint16_t h = FloatToHalf((static_cast<float>(rng() % 2001) - 1000.0f) / 512.0f);
      std::memcpy(&row[block + static_cast<size_t>(at)], &h, 2);
    }
  }
  return row;
}

TEST(DTypes, TableIsConsistent) {
  int known = 0;
  for (uint32_t id = 0; id < 64; ++id) {
    const DTypeInfo* info = FindDType(id);
    if (info == nullptr) continue;
    ++known;
    EXPECT_EQ(static_cast<uint32_t>(info->type), id);
    EXPECT_EQ(info->name, GgmlTypeName(id));
    EXPECT_EQ(Info(info->type).name, info->name);
  }
  EXPECT_EQ(known, 15);
  EXPECT_EQ(GgmlTypeName(16), "iq2_xxs");
  EXPECT_EQ(GgmlTypeName(39), "mxfp4");
  EXPECT_EQ(GgmlTypeName(42), "?");
  EXPECT_EQ(GgmlTypeName(0xffffffffu), "?");
  EXPECT_EQ(FindDType(4), nullptr);
  EXPECT_EQ(FindDType(0xffffffffu), nullptr);
  EXPECT_EQ(RowBytes(DType::kQ6_K, 512), 420u);
}

TEST(UnpackCodes, GivesWhatDecodeGives) {
  for (DType type : kQuantized) {
    const int64_t n = 1024;
    std::vector<uint8_t> row = RandomRow(type, n, 7);
    if (type == DType::kQ8_0) {
      for (uint8_t& b : row) b = b == 0x80 ? 0x81 : b;  // -128 has a test of its own
    }
    std::vector<float> want(static_cast<size_t>(n));
    DecodeRow(type, row.data(), n, want.data());
    for (int64_t begin : {0, 1, 7, 9, 31}) {  // any start, across block ends
      const int64_t count = n / kGroup - begin;
      std::vector<int8_t> codes(static_cast<size_t>(count * kGroup));
      std::vector<float> scales(static_cast<size_t>(count * 2));
      std::vector<float> mins(static_cast<size_t>(count * 2));
      UnpackCodes(type, row.data(), begin, count, codes.data(), scales.data(), mins.data());
      for (size_t i = 0; i < codes.size(); ++i) {
        const float got = scales[i / 16] * static_cast<float>(codes[i]) + mins[i / 16];
        ASSERT_EQ(got, want[static_cast<size_t>(begin * kGroup) + i]) << Info(type).name << " " << begin << " " << i;
        ASSERT_LE(std::abs(codes[i]), MaxCode(type));
      }
      for (size_t g = 0; g < scales.size(); g += 2) {
        if (ScaleColumns(type) == 32) {
          ASSERT_EQ(scales[g], scales[g + 1]);
          ASSERT_EQ(mins[g], mins[g + 1]);
        }
        ASSERT_TRUE(HasMin(type) || (mins[g] == 0.0f && mins[g + 1] == 0.0f));
      }
    }
  }
}

TEST(UnpackCodes, ReachesMaxCode) {
  for (DType type : kQuantized) {
    const int64_t n = 8192;
    const std::vector<uint8_t> row = RandomRow(type, n, 11);
    std::vector<int8_t> codes(static_cast<size_t>(n));
    std::vector<float> scales(static_cast<size_t>(n / 16));
    std::vector<float> mins(static_cast<size_t>(n / 16));
    UnpackCodes(type, row.data(), 0, n / kGroup, codes.data(), scales.data(), mins.data());
    int max = 0;
    for (int8_t c : codes) max = std::max(max, std::abs(c));
    EXPECT_EQ(max, MaxCode(type)) << Info(type).name;
  }
}

TEST(UnpackCodes, ClampsTheCodeThatHasNoNegative) {
  BlockQ8_0 block{FloatToHalf(0.5f), {}};
  block.qs[3] = -128;
  const auto* bytes = reinterpret_cast<const uint8_t*>(&block);
  int8_t codes[32];
  float scales[2];
  float mins[2];
  UnpackCodes(DType::kQ8_0, bytes, 0, 1, codes, scales, mins);
  EXPECT_EQ(codes[3], -127);
  float decoded[32];
  DecodeRow(DType::kQ8_0, bytes, 32, decoded);
  EXPECT_EQ(decoded[3], -64.0f);
}

TEST(DecodeRow, KnownBlock) {
  BlockQ4_0 block{FloatToHalf(2.0f), {}};
  block.qs[0] = 0x1f;  // column 0: 15, column 16: 1; all others 0
  float out[32];
  DecodeRow(DType::kQ4_0, reinterpret_cast<const uint8_t*>(&block), 32, out);
  EXPECT_EQ(out[0], 14.0f);
  EXPECT_EQ(out[16], -14.0f);
  EXPECT_EQ(out[1], -16.0f);
}

TEST(DecodeRow, AnyBytesAndNoValuesAreHarmless) {
  std::vector<uint8_t> row(4 * 256, 0xff);  // NaN scales
  std::vector<float> out(256);
  for (DType type : kQuantized) {
    DecodeRow(type, row.data() + 1, 256, out.data());
    EXPECT_TRUE(std::isnan(out[0])) << Info(type).name;
    DecodeRow(type, nullptr, 0, nullptr);
  }
}

// Half a step of the block's range, and what rounding scale and min to half adds.
TEST(EncodeRow, ErrorIsBounded) {
  struct Case {
    DType type;
    double steps;  // range / step size
    bool affine;
  };
  const Case cases[] = {{DType::kQ4_0, 8, false},
                        {DType::kQ4_1, 15, true},
                        {DType::kQ5_0, 16, false},
                        {DType::kQ5_1, 31, true},
                        {DType::kQ8_0, 127, false}};
  std::mt19937 rng(3);
  std::normal_distribution<float> normal;
  std::vector<float> x(4096);
  for (float& v : x) v = normal(rng) + 0.3f;
  for (const Case& c : cases) {
    std::vector<uint8_t> row(RowBytes(c.type, x.size()));
    std::vector<float> y(x.size());
    ASSERT_TRUE(EncodeRow(c.type, x.data(), static_cast<int64_t>(x.size()), row.data()).ok());
    DecodeRow(c.type, row.data(), static_cast<int64_t>(x.size()), y.data());
    for (size_t g = 0; g < x.size(); g += 32) {
      double low = x[g], high = x[g], magnitude = 0;
      for (size_t i = g; i < g + 32; ++i) {
        low = std::min<double>(low, x[i]), high = std::max<double>(high, x[i]),
        magnitude = std::max<double>(magnitude, std::fabs(x[i]));
      }
      const double step = (c.affine ? high - low : magnitude) / c.steps;
      // The signed formats have no code for +range at the far end: up to a whole step there.
      const double bound = step * (c.affine || c.type == DType::kQ8_0 ? 0.5 : 1.0) + 2.0 * magnitude / 2048.0;
      for (size_t i = g; i < g + 32; ++i) ASSERT_LE(std::fabs(x[i] - y[i]), bound) << Info(c.type).name << " " << i;
    }
  }
}

TEST(EncodeRow, TinyAndHugeValuesAreDefined) {
  std::vector<float> x(32, 0.0f);
  x[1] = std::numeric_limits<float>::denorm_min();
  x[2] = -1e-40f;
  for (DType type : {DType::kQ4_0, DType::kQ4_1, DType::kQ5_0, DType::kQ5_1, DType::kQ8_0}) {
    std::vector<uint8_t> row(RowBytes(type, 32));
    float y[32];
    ASSERT_TRUE(EncodeRow(type, x.data(), 32, row.data()).ok());
    DecodeRow(type, row.data(), 32, y);
    for (float v : y) EXPECT_EQ(v, 0.0f) << Info(type).name;
    std::vector<float> huge(32, std::numeric_limits<float>::max());
    huge[5] = -huge[5];
    EXPECT_TRUE(EncodeRow(type, huge.data(), 32, row.data()).ok());  // the scale overflows, nothing else happens
  }
}

TEST(EncodeRow, Refuses) {
  std::vector<float> x(256, 1.0f);
  std::vector<uint8_t> row(4 * 256);
  for (DType type :
       {DType::kQ2_K, DType::kQ3_K, DType::kQ4_K, DType::kQ5_K, DType::kQ6_K, DType::kIQ4_NL, DType::kIQ4_XS}) {
    EXPECT_EQ(EncodeRow(type, x.data(), 256, row.data()).code(), StatusCode::kUnsupported);
  }
  EXPECT_EQ(EncodeRow(DType::kQ8_0, x.data(), 33, row.data()).code(), StatusCode::kInvalidArgument);
  EXPECT_EQ(EncodeRow(DType::kQ8_0, x.data(), -32, row.data()).code(), StatusCode::kInvalidArgument);
  for (float bad : {std::numeric_limits<float>::quiet_NaN(), std::numeric_limits<float>::infinity()}) {
    x[200] = bad;
    const Status status = EncodeRow(DType::kQ4_0, x.data(), 256, row.data());
    EXPECT_EQ(status.code(), StatusCode::kInvalidArgument);
    EXPECT_NE(status.message().find("200"), std::string::npos);
    EXPECT_TRUE(EncodeRow(DType::kF16, x.data(), 256, row.data()).ok());
  }
}

}  // namespace
}  // namespace kvart

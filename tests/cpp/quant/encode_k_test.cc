// The searching encoders: against plain rounding, on values that lie on a grid already, at the edges, with importances.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <random>
#include <vector>

#include "quant/half.h"
#include "quant/quant.h"
#include "quant/quantize.h"

namespace kvart {
namespace {

constexpr DType kSuper[] = {DType::kQ2_K, DType::kQ3_K, DType::kQ4_K, DType::kQ5_K, DType::kQ6_K};
constexpr DType kSimple[] = {DType::kQ4_0, DType::kQ4_1, DType::kQ5_0, DType::kQ5_1};
constexpr DType kAll[] = {DType::kQ2_K, DType::kQ3_K, DType::kQ4_K, DType::kQ5_K, DType::kQ6_K,
                          DType::kQ4_0, DType::kQ4_1, DType::kQ5_0, DType::kQ5_1, DType::kQ8_0};

std::vector<float> Gaussian(size_t n, uint32_t seed, float spread = 0.02f) {
  std::mt19937 rng(seed);
  std::normal_distribution<float> draw(0.0f, spread);
  std::vector<float> x(n);
  for (float& v : x) v = draw(rng);
  return x;
}

std::vector<uint8_t> Encode(DType type, const std::vector<float>& x, const std::vector<float>& importance = {}) {
  std::vector<uint8_t> row(RowBytes(type, x.size()));
  const float* w = importance.empty() ? nullptr : importance.data();
  const Status status = QuantizeRow(type, x.data(), static_cast<int64_t>(x.size()), w, row.data());
  EXPECT_TRUE(status.ok()) << Info(type).name << ": " << status.message();
  return row;
}

std::vector<float> Decode(DType type, const std::vector<uint8_t>& row, size_t n) {
  std::vector<float> x(n);
  DecodeRow(type, row.data(), static_cast<int64_t>(n), x.data());
  return x;
}

std::vector<float> RoundTrip(DType type, const std::vector<float>& x, const std::vector<float>& importance = {}) {
  return Decode(type, Encode(type, x, importance), x.size());
}

double Error(const std::vector<float>& x, const std::vector<float>& y, const std::vector<float>& importance = {}) {
  double sum = 0;
  for (size_t i = 0; i < x.size(); ++i) {
    sum += (importance.empty() ? 1.0 : importance[i]) * (x[i] - y[i]) * (x[i] - y[i]);
  }
  return sum;
}

// Groups, levels and scales as the format has them, each set by the extremes and rounded to nearest: no search.
struct Plain {
  DType type;
  size_t group;
  int low, high;  // of the codes
  bool min;
  int scale_levels;
};
constexpr Plain kPlain[] = {{DType::kQ2_K, 16, 0, 3, true, 15},
                            {DType::kQ3_K, 16, -4, 3, false, 31},
                            {DType::kQ4_K, 32, 0, 15, true, 63},
                            {DType::kQ5_K, 32, 0, 31, true, 63},
                            {DType::kQ6_K, 16, -32, 31, false, 127}};

std::vector<float> PlainRoundTrip(const Plain& p, const std::vector<float>& x) {
  std::vector<float> y(x.size());
  for (size_t block = 0; block < x.size(); block += kSuperBlock) {
    const size_t n_groups = kSuperBlock / p.group;
    std::vector<float> scale(n_groups), min(n_groups, 0.0f);
    for (size_t g = 0; g < n_groups; ++g) {
      const auto begin = x.begin() + static_cast<std::ptrdiff_t>(block + g * p.group);
      const auto [low, high] = std::minmax_element(begin, begin + static_cast<std::ptrdiff_t>(p.group));
      if (p.min) {
        min[g] = std::min(0.0f, *low);
        scale[g] = (*high - min[g]) / static_cast<float>(p.high);
      } else {
        scale[g] = std::max(std::fabs(*low), std::fabs(*high)) / static_cast<float>(p.high);
      }
    }
    const auto levels = static_cast<float>(p.scale_levels);
    const float d = HalfToFloat(FloatToHalf(*std::max_element(scale.begin(), scale.end()) / levels));
    const float dmin = HalfToFloat(FloatToHalf(-*std::min_element(min.begin(), min.end()) / levels));
    for (size_t i = 0; i < kSuperBlock; ++i) {
      const size_t g = i / p.group;
      const float s = d * std::round(scale[g] / d);
      const float m = dmin > 0.0f ? -dmin * std::round(-min[g] / dmin) : 0.0f;
      const float q =
          std::clamp(std::round((x[block + i] - m) / s), static_cast<float>(p.low), static_cast<float>(p.high));
      y[block + i] = s * q + m;
    }
  }
  return y;
}

TEST(QuantizeRow, LosesLessThanPlainRounding) {
  for (const Plain& p : kPlain) {
    for (uint32_t seed : {1u, 2u}) {
      std::vector<float> x = Gaussian(16 * kSuperBlock, seed);
      for (size_t i = 0; i < x.size(); i += 97) x[i] *= 4.0f;  // some outliers, as weights have
      const double plain = Error(x, PlainRoundTrip(p, x)), found = Error(x, RoundTrip(p.type, x));
      EXPECT_LT(found, 0.95 * plain) << Info(p.type).name;
    }
  }
}

TEST(QuantizeRow, FindsTheGridOfValuesThatLieOnOne) {
  for (DType type : kSuper) {
    const std::vector<uint8_t> row = Encode(type, Gaussian(32 * kSuperBlock, 4));
    const std::vector<float> x = Decode(type, row, 32 * kSuperBlock);
    const std::vector<float> y = RoundTrip(type, x);
    EXPECT_LT(Error(x, y), 5e-4 * Error(x, std::vector<float>(x.size()))) << Info(type).name;
  }
}

TEST(QuantizeRow, OfTheSimpleFormatsIsEncodeRowWithoutImportance) {
  const std::vector<float> x = Gaussian(4 * kSuperBlock, 5);
  for (DType type :
       {DType::kQ4_0, DType::kQ4_1, DType::kQ5_0, DType::kQ5_1, DType::kQ8_0, DType::kF32, DType::kF16, DType::kBF16}) {
    std::vector<uint8_t> wanted(RowBytes(type, x.size()));
    ASSERT_TRUE(EncodeRow(type, x.data(), static_cast<int64_t>(x.size()), wanted.data()).ok());
    EXPECT_EQ(Encode(type, x), wanted) << Info(type).name;
  }
}

TEST(QuantizeRow, SparesTheImportantColumns) {
  std::mt19937 rng(6);
  std::lognormal_distribution<float> draw(0.0f, 2.0f);
  const std::vector<float> x = Gaussian(16 * kSuperBlock, 7);
  std::vector<float> importance(x.size());
  for (float& v : importance) v = draw(rng);
  for (DType type : kAll) {
    if (type == DType::kQ8_0) continue;  // no search
    const double with = Error(x, RoundTrip(type, x, importance), importance);
    EXPECT_LT(with, 0.9 * Error(x, RoundTrip(type, x), importance)) << Info(type).name;
  }
}

TEST(QuantizeRow, ImportanceCountsRelativeToItsBlock) {
  const std::vector<float> x = Gaussian(2 * kSuperBlock, 8);
  std::vector<float> importance = Gaussian(x.size(), 9, 1.0f);
  for (float& v : importance) v *= v;
  std::vector<float> larger = importance;
  for (float& v : larger) v *= 0x1p60f;
  for (DType type : kAll) EXPECT_EQ(Encode(type, x, importance), Encode(type, x, larger)) << Info(type).name;
  const std::vector<float> none(x.size(), 0.0f), same(x.size(), 3.0f);
  for (DType type : kSuper) EXPECT_EQ(Encode(type, x, none), Encode(type, x)) << Info(type).name;
  for (DType type : kSimple) EXPECT_EQ(Encode(type, x, none), Encode(type, x, same)) << Info(type).name;
  // A group of no importance beside one that has some is still kept near what it was.
  for (size_t i = 0; i < x.size(); ++i) importance[i] = i / 32 % 2 == 0 ? 1.0f : 0.0f;
  for (DType type : kAll) {
    EXPECT_LT(Error(x, RoundTrip(type, x, importance)), 0.5 * Error(x, none)) << Info(type).name;
  }
}

TEST(QuantizeRow, BlocksDependOnNothingElse) {
  const std::vector<float> x = Gaussian(3 * kSuperBlock, 10);
  std::vector<float> importance = Gaussian(x.size(), 11, 1.0f);
  for (float& v : importance) v = std::fabs(v);
  for (DType type : kAll) {
    const std::vector<uint8_t> row = Encode(type, x, importance);
    std::vector<uint8_t> joined;
    for (size_t i = 0; i < x.size(); i += kSuperBlock) {
      const auto at = static_cast<std::ptrdiff_t>(i);
      const std::vector<float> part(x.begin() + at, x.begin() + at + kSuperBlock);
      const std::vector<uint8_t> block =
          Encode(type, part, std::vector<float>(importance.begin() + at, importance.begin() + at + kSuperBlock));
      joined.insert(joined.end(), block.begin(), block.end());
    }
    EXPECT_EQ(row, joined) << Info(type).name;
  }
}

TEST(QuantizeRow, ScalesWithItsInput) {
  const std::vector<float> x = Gaussian(4 * kSuperBlock, 12, 1.0f);
  for (DType type : kAll) {
    const std::vector<float> y = RoundTrip(type, x);
    for (const float factor : {2.0f, 16.0f}) {  // powers of two, and halves that are not subnormal
      std::vector<float> larger = x;
      for (float& v : larger) v *= factor;
      const std::vector<float> found = RoundTrip(type, larger);
      for (size_t i = 0; i < x.size(); ++i) ASSERT_EQ(found[i], factor * y[i]) << Info(type).name << " " << i;
    }
  }
}

TEST(QuantizeRow, Edges) {
  for (DType type : kAll) {
    const std::vector<float> zeros(kSuperBlock, 0.0f), ones(kSuperBlock, 1.0f);
    for (const std::vector<float>& importance : {std::vector<float>{}, ones}) {
      for (const float v : RoundTrip(type, zeros, importance)) EXPECT_EQ(v, 0.0f) << Info(type).name;
      for (const float value : {1.0f, -1.0f, 0.37f, -1000.0f, 65504.0f, -65504.0f, 0.02f}) {
        for (const float v : RoundTrip(type, std::vector<float>(kSuperBlock, value), importance)) {
          EXPECT_NEAR(v, value, 0.004 * std::fabs(value)) << Info(type).name;
        }
      }
      std::vector<float> tiny(kSuperBlock, 0.0f);
      tiny[3] = std::numeric_limits<float>::denorm_min();
      tiny[70] = -1e-40f;
      tiny[130] = 1e-9f;
      for (const float v : RoundTrip(type, tiny, importance)) EXPECT_EQ(v, 0.0f) << Info(type).name;
      std::vector<float> one(kSuperBlock, 0.0f);  // a single value that is not zero
      one[100] = -3.5f;
      const std::vector<float> y = RoundTrip(type, one, importance);
      for (size_t i = 0; i < one.size(); ++i) EXPECT_NEAR(y[i], one[i], 0.01) << Info(type).name << " " << i;
      std::vector<float> wild = Gaussian(kSuperBlock, 13);
      wild[17] = 65504.0f;
      wild[200] = -65504.0f;
      for (const float v : RoundTrip(type, wild, importance)) EXPECT_TRUE(std::isfinite(v)) << Info(type).name;
    }
  }
}

TEST(QuantizeRow, Refuses) {
  std::vector<float> x(kSuperBlock, 1.0f);
  std::vector<uint8_t> row(4 * kSuperBlock);
  for (DType type : {DType::kIQ4_NL, DType::kIQ4_XS}) {
    EXPECT_FALSE(CanQuantize(type));
    EXPECT_EQ(QuantizeRow(type, x.data(), kSuperBlock, nullptr, row.data()).code(), StatusCode::kUnsupported);
  }
  for (DType type : kSuper) {
    EXPECT_TRUE(CanQuantize(type));
    EXPECT_EQ(QuantizeRow(type, x.data(), 128, nullptr, row.data()).code(), StatusCode::kInvalidArgument);
    EXPECT_EQ(QuantizeRow(type, x.data(), -256, nullptr, row.data()).code(), StatusCode::kInvalidArgument);
  }
  const float inf = std::numeric_limits<float>::infinity();
  for (const float bad : {std::numeric_limits<float>::quiet_NaN(), inf, -inf, 65536.0f}) {
    x[200] = bad;
    for (DType type : {DType::kQ4_K, DType::kQ6_K, DType::kQ8_0, DType::kQ4_0, DType::kF16}) {
      const Status status = QuantizeRow(type, x.data(), kSuperBlock, nullptr, row.data());
      EXPECT_EQ(status.code(), StatusCode::kInvalidArgument) << Info(type).name << " " << bad;
      EXPECT_NE(status.message().find("200"), std::string::npos);
    }
    EXPECT_EQ(QuantizeRow(DType::kBF16, x.data(), kSuperBlock, nullptr, row.data()).ok(), bad == 65536.0f);
  }
}

}  // namespace
}  // namespace kvart

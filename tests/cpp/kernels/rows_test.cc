// The small kernels over rows of every table: the bits of the scalar table, and the scalar table against plain
// arithmetic.
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>

#include "kernels/kernel_testing.h"

namespace kvart {
namespace {

using testing::Random;
using testing::Same;
using testing::Scalar;
using testing::Uniforms;

constexpr float kInf = std::numeric_limits<float>::infinity();
constexpr float kNaN = std::numeric_limits<float>::quiet_NaN();
constexpr float kMax = std::numeric_limits<float>::max();

class RowsTest : public ::testing::TestWithParam<const KernelTable*> {};
KVART_TEST_ALL_TABLES(RowsTest);

// Floats of every exponent and sign with random mantissas, subnormals, infinities and NaN.
std::vector<float> AllKinds(Random& random, int per_exponent) {
  std::vector<float> values;
  for (uint32_t exponent = 0; exponent < 256; ++exponent) {
    for (int i = 0; i < per_exponent; ++i) {
      const uint32_t mantissa = i == 0 ? 0 : i == 1 ? 0x7fffff : random() & 0x7fffff;
      const uint32_t bits = (random() & 0x80000000u) | exponent << 23 | mantissa;
      values.push_back(std::bit_cast<float>(bits));
    }
  }
  return values;
}

// ---- rms_norm

TEST_P(RowsTest, RmsNormAsScalar) {
  Random random(1);
  for (const int64_t cols : {8, 16, 24, 64, 128, 896, 1000}) {
    for (const int64_t n : {1, 3}) {
      std::vector<float> x = Uniforms(random, n * cols, -30, 30);
      const std::vector<float> w = Uniforms(random, cols, -2, 2);
      std::vector<float> got(x.size()), want(x.size());
      GetParam()->rms_norm(x.data(), w.data(), 1e-6f, n, cols, got.data());
      Scalar().rms_norm(x.data(), w.data(), 1e-6f, n, cols, want.data());
      EXPECT_TRUE(Same(got, want)) << cols;
      GetParam()->rms_norm(x.data(), w.data(), 1e-6f, n, cols, x.data());
      EXPECT_TRUE(Same(x, want)) << "in place";
    }
  }
}

TEST_P(RowsTest, RmsNormOfExtremes) {
  const std::vector<float> w(8, 1.0f);
  for (const float value : {0.0f, -0.0f, 1e-30f, 1e-42f, 1e15f, 3e38f, kInf, kNaN}) {
    const std::vector<float> x = {value, 0, -value, value, 0, 0, value, value};
    std::vector<float> got(8), want(8);
    GetParam()->rms_norm(x.data(), w.data(), 1e-6f, 1, 8, got.data());
    Scalar().rms_norm(x.data(), w.data(), 1e-6f, 1, 8, want.data());
    EXPECT_TRUE(Same(got, want)) << value;
  }
}

TEST(RowsAccuracyTest, RmsNorm) {
  Random random(2);
  const std::vector<float> x = Uniforms(random, 896, -3, 3), w = Uniforms(random, 896, -2, 2);
  std::vector<float> got(896);
  Scalar().rms_norm(x.data(), w.data(), 1e-6f, 1, 896, got.data());
  double squares = 0;
  for (const float value : x) squares += static_cast<double>(value) * value;
  const double r = 1 / std::sqrt(squares / 896 + 1e-6);
  for (size_t c = 0; c < 896; ++c) EXPECT_NEAR(got[c], x[c] * r * w[c], 1e-6 * std::fabs(got[c]) + 1e-12);
}

// ---- quantize

std::vector<ActivationBlock> Quantize(const KernelTable& table, const std::vector<float>& x) {
  std::vector<ActivationBlock> blocks(x.size() / 32);
  table.quantize(x.data(), static_cast<int64_t>(blocks.size()), blocks.data());
  return blocks;
}

void ExpectQuantizedAsScalar(const KernelTable& table, const std::vector<float>& x) {
  const std::vector<ActivationBlock> got = Quantize(table, x), want = Quantize(Scalar(), x);
  for (size_t b = 0; b < got.size(); ++b) {
    ASSERT_TRUE(testing::SameFloat(got[b].scale, want[b].scale)) << "block " << b;
    for (size_t i = 0; i < 32; ++i) ASSERT_EQ(got[b].q[i], want[b].q[i]) << b << " " << i << ": " << x[b * 32 + i];
    ASSERT_TRUE(testing::SameFloat(got[b].sum, want[b].sum)) << "block " << b;
    for (size_t p = 0; p < 6; ++p) ASSERT_EQ(got[b].pair_sums[p], want[b].pair_sums[p]) << "block " << b << " " << p;
  }
}

TEST_P(RowsTest, QuantizeAsScalar) {
  Random random(3);
  ExpectQuantizedAsScalar(*GetParam(), Uniforms(random, 32 * 500));
  std::vector<float> mixed = AllKinds(random, 32);  // a block of each exponent
  ExpectQuantizedAsScalar(*GetParam(), mixed);
  std::shuffle(mixed.begin(), mixed.end(), random);
  ExpectQuantizedAsScalar(*GetParam(), mixed);
}

TEST_P(RowsTest, QuantizeTies) {
  std::vector<float> x(32 * 8);
  for (size_t i = 0; i < x.size(); ++i) x[i] = static_cast<float>(i % 254) * 0.5f - 63.0f;
  for (size_t b = 0; b < 8; ++b) x[b * 32 + b] = 127.0f;  // the scale is 1: halves stay halves
  ExpectQuantizedAsScalar(*GetParam(), x);
  const std::vector<ActivationBlock> blocks = Quantize(*GetParam(), x);
  for (size_t i = 0; i < x.size(); ++i) {
    EXPECT_EQ(blocks[i / 32].q[i % 32], static_cast<int>(std::nearbyint(x[i]))) << x[i];
  }
}

TEST_P(RowsTest, QuantizeExtremes) {
  for (const float value : {0.0f, -0.0f, 1e-45f, 1e-40f, 1e-37f, kMax, -kMax, kInf, -kInf, kNaN}) {
    for (const float other : {0.0f, 1.0f, -1.0f, kInf, -kInf, kNaN, 1e-45f, kMax}) {
      std::vector<float> x(32, other);
      for (const size_t at : {0, 5, 17, 30}) x[at] = value;
      ExpectQuantizedAsScalar(*GetParam(), x);
    }
  }
  const std::vector<float> zeros(32, -0.0f);
  const ActivationBlock block = Quantize(*GetParam(), zeros)[0];
  EXPECT_EQ(block.scale, 0.0f);
  for (const int8_t q : block.q) EXPECT_EQ(q, 0);
}

TEST_P(RowsTest, QuantizeMeansWhatItSays) {
  Random random(4);
  const std::vector<float> x = Uniforms(random, 32 * 100, -7, 7);
  const std::vector<ActivationBlock> blocks = Quantize(*GetParam(), x);
  for (size_t b = 0; b < blocks.size(); ++b) {
    std::array<int, 6> sums = {};
    for (size_t i = 0; i < 32; ++i) {
      const float value = blocks[b].scale * static_cast<float>(blocks[b].q[i]);
      EXPECT_NEAR(value, x[b * 32 + i], blocks[b].scale * 0.50001f);
      sums[i / 16 * 2 + i % 4 / 2] += blocks[b].q[i];
      sums[4 + i % 4 / 2] += blocks[b].q[i];
    }
    for (size_t p = 0; p < 6; ++p) EXPECT_EQ(blocks[b].pair_sums[p], sums[p]);
    EXPECT_EQ(blocks[b].sum, static_cast<float>(sums[4] + sums[5]) * blocks[b].scale);
  }
}

// ---- silu_mul, and Exp2 through it

TEST_P(RowsTest, SiluAsScalar) {
  Random random(5);
  std::vector<float> g = AllKinds(random, 16);
  for (const float value : Uniforms(random, 1000, -20, 20)) g.push_back(value);
  for (const float value : {-88.0f, 88.0f, -87.3365f, -200.0f, 200.0f, 0.0f, -0.0f}) g.push_back(value);
  const std::vector<float> u = Uniforms(random, static_cast<int64_t>(g.size()), -3, 3);
  for (const size_t n :
       {size_t{1}, size_t{2}, size_t{3}, size_t{4}, size_t{7}, size_t{8}, size_t{9}, size_t{15}, g.size()}) {
    std::vector<float> got(n + 1, 777.0f), want(n + 1, 777.0f);
    GetParam()->silu_mul(g.data(), u.data(), static_cast<int64_t>(n), got.data());
    Scalar().silu_mul(g.data(), u.data(), static_cast<int64_t>(n), want.data());
    EXPECT_TRUE(Same(got, want)) << n;
  }
  for (size_t i = 0; i < 40; ++i) {  // the last element of a short run takes the tail's way
    float got = 0, want = 0;
    GetParam()->silu_mul(&g[i * 100], &u[i * 100], 1, &got);
    Scalar().silu_mul(&g[i * 100], &u[i * 100], 1, &want);
    EXPECT_TRUE(testing::SameFloat(got, want)) << g[i * 100];
  }
}

TEST(RowsAccuracyTest, Silu) {
  for (float g = -30; g < 30; g += 0.0371f) {
    const float u = 1.5f;
    float got = 0;
    Scalar().silu_mul(&g, &u, 1, &got);
    const double want = g / (1 + std::exp(-static_cast<double>(g))) * u;
    // -g log2(e) is rounded once, which Exp2 turns into a relative error of |g| * 2^-24.
    EXPECT_NEAR(got, want, (5e-7 + std::fabs(g) * 1.2e-7) * std::fabs(want)) << g;
  }
}

// Exp2 itself is not in the table; the softmax of two scores, 0 and x, shows it.
float Exp2Of(const KernelTable& table, float x) {  // x <= 0
  alignas(64) float s[1][kMaxPageTokens] = {{0.0f, x}};
  const int32_t visible = 2;
  float m = 0, l = 0;
  SoftmaxArgs args;
  args.n_rows = 1;
  args.visible = &visible;
  args.s = s;
  args.m = &m;
  args.l = &l;
  table.softmax(args);
  return s[0][1];
}

TEST_P(RowsTest, Exp2) {
  EXPECT_EQ(Exp2Of(*GetParam(), 0.0f), 1.0f);
  double worst = 0;
  for (float x = -125.9f; x < 0; x += 0.00917f) {
    const double want = std::exp2(static_cast<double>(x));
    worst = std::max(worst, std::fabs(Exp2Of(*GetParam(), x) - want) / want);
  }
  EXPECT_LT(worst, 2e-7);
  for (int x = 0; x <= 126; ++x) EXPECT_EQ(Exp2Of(*GetParam(), static_cast<float>(-x)), std::ldexp(1.0f, -x));
  for (const float x : {-126.5f, -127.0f, -1000.0f, -kMax, -kInf}) EXPECT_EQ(Exp2Of(*GetParam(), x), 0x1p-126f) << x;
}

// ---- to_half

void ExpectHalvesAsScalar(const KernelTable& table, const std::vector<float>& x) {
  std::vector<uint16_t> got(x.size() + 1, 0x1234), want(x.size() + 1, 0x1234);
  table.to_half(x.data(), static_cast<int64_t>(x.size()), got.data());
  Scalar().to_half(x.data(), static_cast<int64_t>(x.size()), want.data());
  for (size_t i = 0; i < x.size(); ++i) ASSERT_EQ(got[i], want[i]) << std::hex << std::bit_cast<uint32_t>(x[i]);
  ASSERT_EQ(got.back(), 0x1234) << "wrote beyond the end";
}

TEST_P(RowsTest, ToHalfAsScalar) {
  Random random(6);
  ExpectHalvesAsScalar(*GetParam(), AllKinds(random, 64));
  std::vector<float> near;  // every half, its neighbours, and the ties between halves
  for (uint32_t h = 0; h < 0x10000; ++h) {
    const float value = HalfToFloat(static_cast<uint16_t>(h));
    const uint32_t bits = std::bit_cast<uint32_t>(value);
    for (const uint32_t other : {bits, bits + 1, bits - 1, bits + 0x0fff, bits + 0x1000, bits + 0x1001}) {
      near.push_back(std::bit_cast<float>(other));
    }
    if ((h & 0x7c00) == 0) near.push_back(value + 0x1p-25f);  // ties between subnormals
  }
  ExpectHalvesAsScalar(*GetParam(), near);
  for (size_t n = 0; n < 20; ++n) ExpectHalvesAsScalar(*GetParam(), Uniforms(random, static_cast<int64_t>(n)));
}

}  // namespace
}  // namespace kvart

// The definition itself: the scalar products against plain sums in double precision.
#include <gtest/gtest.h>

#include <cmath>

#include "kernels/matmul_testing.h"

namespace kvart {
namespace {

using testing::AllModes;
using testing::Mode;
using testing::ModeName;
using testing::Product;
using testing::Random;
using testing::Scalar;

// What the product means, and how far a float sum may be off: the sum of all magnitudes times a few roundings.
struct Exact {
  double value = 0, magnitude = 0;
};

Exact Dot(const Product& product, int64_t row, int64_t token) {
  const size_t cols = static_cast<size_t>(product.cols);
  const size_t row_bytes = product.weights.size() / static_cast<size_t>(product.rows);
  std::vector<float> w(cols);
  DecodeRow(product.type, product.weights.data() + static_cast<size_t>(row) * row_bytes, product.cols, w.data());
  Exact exact;
  for (size_t c = 0; c < cols; ++c) {
    const size_t at = static_cast<size_t>(token) * cols + c;
    const double x = product.activations == Activations::kFloat
                         ? product.x[at]
                         : static_cast<double>(product.blocks[at / 32].scale) * product.blocks[at / 32].q[at % 32];
    exact.value += w[c] * x;
    exact.magnitude += std::fabs(w[c] * x);
  }
  return exact;
}

TEST(MatmulAccuracyTest, ScalarIsTheSum) {
  Random random(11);
  for (const Mode& mode : AllModes()) {
    const MatmulKernel& kernel = *FindMatmul(Scalar(), mode.type, mode.activations);
    Product product(random, mode.type, mode.activations, 10, 512, 3);
    if (mode.type == DType::kQ8_0) {  // no encoder writes -128, see UnpackCodes
      for (uint8_t& byte : product.weights) byte = byte == 0x80 ? 0x81 : byte;
    }
    const std::vector<float> got = product.Run(kernel);
    for (int64_t i = 0; i < 3; ++i) {
      for (int64_t r = 0; r < 10; ++r) {
        const Exact want = Dot(product, r, i);
        // With a min, a value is the difference of two greater ones: allow for their size.
        const double slack = (HasMin(mode.type) ? 1e-4 : 4e-6) * want.magnitude;
        EXPECT_NEAR(got[static_cast<size_t>(i * 10 + r)], want.value, slack) << ModeName(mode) << " row " << r;
      }
    }
  }
}

TEST(MatmulAccuracyTest, Int8ActivationsAreCloseToFloatOnes) {
  Random random(12);
  for (const Mode& mode : AllModes()) {
    if (mode.activations == Activations::kFloat) continue;
    Product product(random, mode.type, Activations::kInt8, 8, 1024, 1, 0x69);
    const std::vector<float> coarse = product.Run(*FindMatmul(Scalar(), mode.type, Activations::kInt8));
    const std::vector<float> fine = product.Run(*FindMatmul(Scalar(), mode.type, Activations::kFloat));
    product.activations = Activations::kFloat;
    for (int64_t r = 0; r < 8; ++r) {
      // Errors of half a step (1 / 254) are independent: 1024 of them reach a small part of the sum of magnitudes.
      EXPECT_NEAR(coarse[static_cast<size_t>(r)], fine[static_cast<size_t>(r)], 0.002 * Dot(product, r, 0).magnitude)
          << ModeName(mode);
    }
  }
}

}  // namespace
}  // namespace kvart

// Matrix products of every table, type and activation mode: the bits of the scalar table, whatever the shape.
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
using testing::Same;
using testing::Scalar;
using testing::Uniforms;

class MatmulTest : public ::testing::TestWithParam<const KernelTable*> {
 protected:
  static const MatmulKernel& Kernel(const KernelTable& table, const Mode& mode) {
    const MatmulKernel* kernel = FindMatmul(table, mode.type, mode.activations);
    EXPECT_NE(kernel, nullptr) << ModeName(mode);
    return *kernel;
  }
  static const MatmulKernel& Tested(const Mode& mode) { return Kernel(*GetParam(), mode); }
  static const MatmulKernel& Truth(const Mode& mode) { return Kernel(Scalar(), mode); }
};
KVART_TEST_ALL_TABLES(MatmulTest);

// Columns that the type allows, from the smallest.
std::vector<int64_t> Columns(DType type) {
  return Info(type).block_values == kSuperBlock ? std::vector<int64_t>{256, 768} : std::vector<int64_t>{32, 96, 320};
}

TEST_P(MatmulTest, KernelIsWhatWasAskedFor) {
  for (const Mode& mode : AllModes()) {
    const MatmulKernel& kernel = Tested(mode);
    EXPECT_EQ(kernel.type, mode.type);
    EXPECT_EQ(kernel.activations, mode.activations);
    const bool scalar = GetParam() == &Scalar();
    EXPECT_EQ(kernel.packing, scalar ? Packing::kRows : Packing::kX8) << kernel.name;
  }
  const MatmulKernel* kernel = FindMatmul(*GetParam(), DType::kF16, Activations::kInt8);
  ASSERT_NE(kernel, nullptr);
  EXPECT_EQ(kernel->activations, Activations::kFloat) << "float formats take float activations";
}

TEST_P(MatmulTest, EveryRowCount) {
  Random random(1);
  for (const Mode& mode : AllModes()) {
    for (const int64_t cols : Columns(mode.type)) {
      for (const int64_t rows : {1, 7, 8, 9, 17, 33}) {
        for (const int64_t n : {1, 5}) {
          const Product product(random, mode.type, mode.activations, rows, cols, n);
          EXPECT_TRUE(Same(product.Run(Tested(mode)), product.Run(Truth(mode))))
              << Tested(mode).name << " rows " << rows << " cols " << cols << " n " << n;
        }
      }
    }
  }
}

TEST_P(MatmulTest, EveryTokenCount) {
  Random random(2);
  for (const Mode& mode : AllModes()) {
    const int64_t cols = Columns(mode.type)[1];
    const Product product(random, mode.type, mode.activations, 17, cols, 31);
    const std::vector<float> want = product.Run(Truth(mode));
    for (const int64_t n : {1, 2, 3, 4, 5, 6, 7, 8, 9, 15, 16, 31}) {
      const std::vector<float> first(want.begin(), want.begin() + static_cast<std::ptrdiff_t>(n * 17));
      EXPECT_TRUE(Same(product.Run(Tested(mode), 0, 17, 0, n), first)) << Tested(mode).name << " n " << n;
    }
  }
}

TEST_P(MatmulTest, TokensDoNotDependOnTheirNumber) {
  Random random(3);
  constexpr int64_t kRows = 24, kTokens = 130;
  for (const Mode& mode : AllModes()) {
    const Product product(random, mode.type, mode.activations, kRows, 256, kTokens);
    const std::vector<float> together = product.Run(Tested(mode));
    for (const int64_t i : {0, 1, 3, 4, 63, 127, 128, 129}) {
      const std::vector<float> row(together.begin() + static_cast<std::ptrdiff_t>(i * kRows),
                                   together.begin() + static_cast<std::ptrdiff_t>((i + 1) * kRows));
      EXPECT_TRUE(Same(product.Run(Tested(mode), 0, kRows, i, 1), row)) << Tested(mode).name << " token " << i;
    }
  }
}

TEST_P(MatmulTest, RowRanges) {
  Random random(4);
  for (const Mode& mode : AllModes()) {
    Product product(random, mode.type, mode.activations, 45, 256, 3);
    for (const bool with_bias : {false, true}) {
      for (const bool accumulate : {false, true}) {
        product.bias = with_bias ? Uniforms(random, 45, -5, 5) : std::vector<float>();
        product.before = accumulate ? Uniforms(random, 3 * 45, -5, 5) : std::vector<float>();
        for (const auto& [begin, end] : {std::pair{0, 45}, {8, 24}, {16, 19}, {40, 45}, {24, 40}, {8, 8}}) {
          EXPECT_TRUE(Same(product.Run(Tested(mode), begin, end, 0, 3), product.Run(Truth(mode), begin, end, 0, 3)))
              << Tested(mode).name << " rows " << begin << " to " << end << " bias " << with_bias << " accumulate "
              << accumulate;
          EXPECT_TRUE(Same(product.Run(Tested(mode), begin, end, 2, 1), product.Run(Truth(mode), begin, end, 2, 1)))
              << Tested(mode).name << " rows " << begin << " to " << end << ", one token";
        }
      }
    }
  }
}

TEST_P(MatmulTest, RowsOfAFileMayLieAnywhere) {
  Random random(5);
  for (const Mode& mode : AllModes()) {
    const Product product(random, mode.type, mode.activations, 9, 256, 2);
    const std::vector<float> want = product.Run(Truth(mode));
    for (const size_t shift : {1, 2, 7}) {
      EXPECT_TRUE(Same(product.Run(Tested(mode), 0, 9, 0, 2, shift), want)) << Tested(mode).name << " shift " << shift;
    }
  }
}

// Codes and activations of the greatest size, of equal and of opposite signs: no integer sum may overflow or saturate.
TEST_P(MatmulTest, LargestCodes) {
  Random random(6);
  for (const Mode& mode : AllModes()) {
    for (const int fill : {0x00, 0x7f, 0x80, 0x81, 0xff, 0x0f, 0xf0}) {
      Product product(random, mode.type, mode.activations, 9, 256, 5, fill);
      std::vector<float> x(5 * 256);
      for (const int pattern : {0, 1, 2, 3}) {
        for (size_t i = 0; i < x.size(); ++i) {
          const bool negative = pattern == 1 || (pattern == 2 && i % 2 == 1) || (pattern == 3 && random() % 2 == 1);
          x[i] = negative ? -1.0f : 1.0f;
        }
        product.SetActivations(x);
        for (const ActivationBlock& block : product.blocks) ASSERT_EQ(std::abs(block.q[0]), 127);
        EXPECT_TRUE(Same(product.Run(Tested(mode)), product.Run(Truth(mode))))
            << Tested(mode).name << " fill " << fill << " pattern " << pattern;
        EXPECT_TRUE(Same(product.Run(Tested(mode), 0, 9, 0, 1), product.Run(Truth(mode), 0, 9, 0, 1)))
            << Tested(mode).name << " fill " << fill << " pattern " << pattern << ", one token";
      }
    }
  }
}

TEST_P(MatmulTest, ActivationsOfAllSizes) {
  Random random(7);
  for (const Mode& mode : AllModes()) {
    Product product(random, mode.type, mode.activations, 8, 256, 9);
    std::vector<float> x = Uniforms(random, 9 * 256);
    for (size_t i = 0; i < x.size(); ++i) x[i] *= std::exp2(static_cast<float>(i / 32 % 60) - 40.0f);
    for (size_t i = 0; i < 64; ++i) x[i] = i < 32 ? 0.0f : -0.0f;
    product.SetActivations(x);
    EXPECT_TRUE(Same(product.Run(Tested(mode)), product.Run(Truth(mode)))) << Tested(mode).name;
  }
}

// Broken scales and activations spread as IEEE says, and only to the rows and tokens that hold them.
TEST_P(MatmulTest, InfinityAndNaN) {
  Random random(8);
  constexpr uint16_t kBad[] = {0x7c00, 0xfc00, 0x7e00};
  for (const Mode& mode : AllModes()) {
    Product product(random, mode.type, mode.activations, 9, 256, 6);
    const size_t row_bytes = product.weights.size() / 9;
    for (const size_t offset : testing::HalfOffsets(mode.type)) {
      for (size_t i = 0; i < 3; ++i) std::memcpy(&product.weights[(2 * i + 1) * row_bytes + offset], &kBad[i], 2);
    }
    product.x[300] = INFINITY;
    product.x[600] = NAN;
    product.SetActivations(product.x);
    EXPECT_TRUE(Same(product.Run(Tested(mode)), product.Run(Truth(mode)))) << Tested(mode).name;
    EXPECT_TRUE(Same(product.Run(Tested(mode), 0, 9, 1, 1), product.Run(Truth(mode), 0, 9, 1, 1))) << Tested(mode).name;
  }
}

}  // namespace
}  // namespace kvart

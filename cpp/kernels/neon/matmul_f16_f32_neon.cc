// Interleaved half weights with float activations.
#include "kernels/neon/kernels_neon.h"
#include "kernels/neon/matmul_f32_inl.h"

namespace kvart::neon {

void matmul_f16_f32_neon(const MatmulArgs& a) {
  const uint16_t* weights = reinterpret_cast<const uint16_t*>(a.weights);
  int64_t row = a.row_begin;
  if (a.n == 1) {
    constexpr int64_t kRows = kGroupsTogether * kGroupRows;
    for (; row + kRows <= a.row_end; row += kRows) TokensF32<kGroupsTogether, 1>(a, row, 0, weights + row * a.cols);
  }
  for (; row < a.row_end; row += kGroupRows) AllTokensF32(a, row, weights + row * a.cols);
}

}  // namespace kvart::neon

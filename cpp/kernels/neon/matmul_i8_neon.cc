// Matrix products with int8 activations. One token unpacks as it reads; more tokens share a row group unpacked once.
#include "kernels/neon/kernels_neon.h"
#include "kernels/neon/packed_inl.h"

namespace kvart::neon {
namespace {

template <class Format>
void Matmul(const MatmulArgs& a) {
  const int64_t n_blocks = a.cols / 32;
  const auto unpacked = Unpacked<Format::kScales, Format::kHasMin>::In(a.scratch, n_blocks);
  for (int64_t row = a.row_begin; row < a.row_end; row += kGroupRows) {
    const Format format(a, row);
    if (a.n == 1) {
      TokensI8<1>(a, row, 0, format);
      continue;
    }
    Block8<Format::kScales, Format::kHasMin> block;
    for (int64_t b = 0; b < n_blocks; ++b) {
      format.Read(b, block);
      unpacked.Write(b, block, Format::kZero);
    }
    AllTokensI8(a, row, unpacked);
  }
}

}  // namespace

#define KVART_KERNEL(name, type)                      \
  void matmul_##name##_i8_neon(const MatmulArgs& a) { \
    Matmul<Packed<DType::k##type>>(a);                \
  }
KVART_CODED_TYPES(KVART_KERNEL)
#undef KVART_KERNEL

}  // namespace kvart::neon

// The table of kernels for CPUs with i8mm: int8 products of several tokens; the rest is NEON's.
#include "kernels/neon/kernels_neon.h"
#include "kernels/tables.h"

namespace kvart {
namespace neon {
namespace {

#define KVART_INT8_ROW(name, type) KVART_MATMUL_ROW(name, type, i8, Int8, X8, neon_i8mm)
constexpr MatmulKernel kMatmulI8mm[] = {KVART_CODED_TYPES(KVART_INT8_ROW)};
#undef KVART_INT8_ROW

}  // namespace
}  // namespace neon

const KernelTable& NeonI8mmKernels() {
  static const KernelTable table = {
      .name = "neon_i8mm",
      .fallback = &NeonKernels(),
      .matmul = neon::kMatmulI8mm,
      .score = {},
      .refine = neon::refine_neon,
      .softmax = neon::softmax_neon,
      .mix = {},
      .attend_merge = neon::attend_merge_neon,
      .rms_norm = neon::rms_norm_neon,
      .quantize = neon::quantize_neon,
      .silu_mul = neon::silu_mul_neon,
      .to_half = neon::to_half_neon,
  };
  return table;
}

}  // namespace kvart

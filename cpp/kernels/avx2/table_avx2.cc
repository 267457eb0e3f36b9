// The table of AVX2 kernels: one row a kernel.
#include "kernels/avx2/attend_avx2.h"
#include "kernels/avx2/rows_avx2.h"
#include "kernels/tables.h"

namespace kvart {
namespace avx2 {

#define KVART_DECLARE(name, type) void matmul_##name##_i8_avx2(const MatmulArgs& args);
KVART_CODED_TYPES(KVART_DECLARE)
#undef KVART_DECLARE
#define KVART_DECLARE(name, type) void matmul_##name##_f32_avx2(const MatmulArgs& args);
KVART_CODED_TYPES(KVART_DECLARE)
KVART_NUMBER_TYPES(KVART_DECLARE)
#undef KVART_DECLARE

namespace {

#define KVART_INT8_ROW(name, type) KVART_MATMUL_ROW(name, type, i8, Int8, X8, avx2)
#define KVART_FLOAT_ROW(name, type) KVART_MATMUL_ROW(name, type, f32, Float, X8, avx2)
constexpr MatmulKernel kMatmul[] = {KVART_CODED_TYPES(KVART_INT8_ROW) KVART_CODED_TYPES(KVART_FLOAT_ROW)
                                        KVART_NUMBER_TYPES(KVART_FLOAT_ROW)};
#undef KVART_INT8_ROW
#undef KVART_FLOAT_ROW

}  // namespace

}  // namespace avx2

const KernelTable& Avx2Kernels() {
  static const KernelTable table = {
      .name = "avx2",
      .matmul = avx2::kMatmul,
      .score = {avx2::kScore, avx2::kScoreCount},
      .refine = avx2::refine_avx2,
      .softmax = avx2::softmax_avx2,
      .mix = {avx2::kMix, avx2::kMixCount},
      .attend_merge = avx2::attend_merge_avx2,
      .rms_norm = avx2::rms_norm_avx2,
      .quantize = avx2::quantize_avx2,
      .silu_mul = avx2::silu_mul_avx2,
      .to_half = avx2::to_half_avx2,
  };
  return table;
}

}  // namespace kvart

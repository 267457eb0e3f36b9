// The table of AVX2 kernels: one row a kernel.
#include "kernels/avx2/attend_avx2.h"
#include "kernels/avx2/rows_avx2.h"
#include "kernels/tables.h"

namespace kvart {
namespace avx2 {

void matmul_f16_f32_avx2(const MatmulArgs& args);
void matmul_f32_f32_avx2(const MatmulArgs& args);
void matmul_bf16_f32_avx2(const MatmulArgs& args);
void matmul_q4_0_i8_avx2(const MatmulArgs& args);
void matmul_q4_1_i8_avx2(const MatmulArgs& args);
void matmul_q5_0_i8_avx2(const MatmulArgs& args);
void matmul_q5_1_i8_avx2(const MatmulArgs& args);
void matmul_q8_0_i8_avx2(const MatmulArgs& args);
void matmul_q2_k_i8_avx2(const MatmulArgs& args);
void matmul_q3_k_i8_avx2(const MatmulArgs& args);
void matmul_q4_k_i8_avx2(const MatmulArgs& args);
void matmul_q5_k_i8_avx2(const MatmulArgs& args);
void matmul_q6_k_i8_avx2(const MatmulArgs& args);
void matmul_iq4_nl_i8_avx2(const MatmulArgs& args);
void matmul_iq4_xs_i8_avx2(const MatmulArgs& args);
void matmul_q4_0_f32_avx2(const MatmulArgs& args);
void matmul_q4_1_f32_avx2(const MatmulArgs& args);
void matmul_q5_0_f32_avx2(const MatmulArgs& args);
void matmul_q5_1_f32_avx2(const MatmulArgs& args);
void matmul_q8_0_f32_avx2(const MatmulArgs& args);
void matmul_q2_k_f32_avx2(const MatmulArgs& args);
void matmul_q3_k_f32_avx2(const MatmulArgs& args);
void matmul_q4_k_f32_avx2(const MatmulArgs& args);
void matmul_q5_k_f32_avx2(const MatmulArgs& args);
void matmul_q6_k_f32_avx2(const MatmulArgs& args);
void matmul_iq4_nl_f32_avx2(const MatmulArgs& args);
void matmul_iq4_xs_f32_avx2(const MatmulArgs& args);

const MatmulKernel kMatmul[] = {
    {"matmul_f16_f32_avx2", DType::kF16, Activations::kFloat, Packing::kX8, matmul_f16_f32_avx2},
    {"matmul_f32_f32_avx2", DType::kF32, Activations::kFloat, Packing::kRows, matmul_f32_f32_avx2},
    {"matmul_bf16_f32_avx2", DType::kBF16, Activations::kFloat, Packing::kRows, matmul_bf16_f32_avx2},
    {"matmul_q4_0_i8_avx2", DType::kQ4_0, Activations::kInt8, Packing::kRows, matmul_q4_0_i8_avx2},
    {"matmul_q4_1_i8_avx2", DType::kQ4_1, Activations::kInt8, Packing::kRows, matmul_q4_1_i8_avx2},
    {"matmul_q5_0_i8_avx2", DType::kQ5_0, Activations::kInt8, Packing::kX8, matmul_q5_0_i8_avx2},
    {"matmul_q5_1_i8_avx2", DType::kQ5_1, Activations::kInt8, Packing::kRows, matmul_q5_1_i8_avx2},
    {"matmul_q8_0_i8_avx2", DType::kQ8_0, Activations::kInt8, Packing::kX8, matmul_q8_0_i8_avx2},
    {"matmul_q2_k_i8_avx2", DType::kQ2_K, Activations::kInt8, Packing::kRows, matmul_q2_k_i8_avx2},
    {"matmul_q3_k_i8_avx2", DType::kQ3_K, Activations::kInt8, Packing::kRows, matmul_q3_k_i8_avx2},
    {"matmul_q4_k_i8_avx2", DType::kQ4_K, Activations::kInt8, Packing::kX8, matmul_q4_k_i8_avx2},
    {"matmul_q5_k_i8_avx2", DType::kQ5_K, Activations::kInt8, Packing::kRows, matmul_q5_k_i8_avx2},
    {"matmul_q6_k_i8_avx2", DType::kQ6_K, Activations::kInt8, Packing::kX8, matmul_q6_k_i8_avx2},
    {"matmul_iq4_nl_i8_avx2", DType::kIQ4_NL, Activations::kInt8, Packing::kRows, matmul_iq4_nl_i8_avx2},
    {"matmul_iq4_xs_i8_avx2", DType::kIQ4_XS, Activations::kInt8, Packing::kRows, matmul_iq4_xs_i8_avx2},
    {"matmul_q4_0_f32_avx2", DType::kQ4_0, Activations::kFloat, Packing::kRows, matmul_q4_0_f32_avx2},
    {"matmul_q4_1_f32_avx2", DType::kQ4_1, Activations::kFloat, Packing::kRows, matmul_q4_1_f32_avx2},
    {"matmul_q5_0_f32_avx2", DType::kQ5_0, Activations::kFloat, Packing::kRows, matmul_q5_0_f32_avx2},
    {"matmul_q5_1_f32_avx2", DType::kQ5_1, Activations::kFloat, Packing::kRows, matmul_q5_1_f32_avx2},
    {"matmul_q8_0_f32_avx2", DType::kQ8_0, Activations::kFloat, Packing::kRows, matmul_q8_0_f32_avx2},
    {"matmul_q2_k_f32_avx2", DType::kQ2_K, Activations::kFloat, Packing::kRows, matmul_q2_k_f32_avx2},
    {"matmul_q3_k_f32_avx2", DType::kQ3_K, Activations::kFloat, Packing::kRows, matmul_q3_k_f32_avx2},
    {"matmul_q4_k_f32_avx2", DType::kQ4_K, Activations::kFloat, Packing::kRows, matmul_q4_k_f32_avx2},
    {"matmul_q5_k_f32_avx2", DType::kQ5_K, Activations::kFloat, Packing::kRows, matmul_q5_k_f32_avx2},
    {"matmul_q6_k_f32_avx2", DType::kQ6_K, Activations::kFloat, Packing::kRows, matmul_q6_k_f32_avx2},
    {"matmul_iq4_nl_f32_avx2", DType::kIQ4_NL, Activations::kFloat, Packing::kRows, matmul_iq4_nl_f32_avx2},
    {"matmul_iq4_xs_f32_avx2", DType::kIQ4_XS, Activations::kFloat, Packing::kRows, matmul_iq4_xs_f32_avx2},
};
const size_t kMatmulCount = sizeof kMatmul / sizeof kMatmul[0];

}  // namespace avx2

const KernelTable& Avx2Kernels() {
  static const KernelTable table = {
      .name = "avx2",
      .matmul = {avx2::kMatmul, avx2::kMatmulCount},
      .score = {avx2::kScore, avx2::kScoreCount},
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

// The table of NEON kernels: one row a kernel.
#include "kernels/neon/kernels_neon.h"
#include "kernels/tables.h"

namespace kvart {
namespace neon {
namespace {

constexpr MatmulKernel kMatmul[] = {
    {"matmul_q5_0_i8_neon", DType::kQ5_0, Activations::kInt8, Packing::kX8, matmul_q5_0_i8_neon},
    {"matmul_q8_0_i8_neon", DType::kQ8_0, Activations::kInt8, Packing::kX8, matmul_q8_0_i8_neon},
    {"matmul_q4_k_i8_neon", DType::kQ4_K, Activations::kInt8, Packing::kX8, matmul_q4_k_i8_neon},
    {"matmul_q6_k_i8_neon", DType::kQ6_K, Activations::kInt8, Packing::kX8, matmul_q6_k_i8_neon},
    {"matmul_f16_f32_neon", DType::kF16, Activations::kFloat, Packing::kX8, matmul_f16_f32_neon},
    {"matmul_q4_0_i8_neon", DType::kQ4_0, Activations::kInt8, Packing::kRows, matmul_q4_0_i8_neon},
    {"matmul_q4_1_i8_neon", DType::kQ4_1, Activations::kInt8, Packing::kRows, matmul_q4_1_i8_neon},
    {"matmul_q5_1_i8_neon", DType::kQ5_1, Activations::kInt8, Packing::kRows, matmul_q5_1_i8_neon},
    {"matmul_q2_k_i8_neon", DType::kQ2_K, Activations::kInt8, Packing::kRows, matmul_q2_k_i8_neon},
    {"matmul_q3_k_i8_neon", DType::kQ3_K, Activations::kInt8, Packing::kRows, matmul_q3_k_i8_neon},
    {"matmul_q5_k_i8_neon", DType::kQ5_K, Activations::kInt8, Packing::kRows, matmul_q5_k_i8_neon},
    {"matmul_iq4_nl_i8_neon", DType::kIQ4_NL, Activations::kInt8, Packing::kRows, matmul_iq4_nl_i8_neon},
    {"matmul_iq4_xs_i8_neon", DType::kIQ4_XS, Activations::kInt8, Packing::kRows, matmul_iq4_xs_i8_neon},
    {"matmul_f32_f32_neon", DType::kF32, Activations::kFloat, Packing::kRows, matmul_f32_f32_neon},
    {"matmul_bf16_f32_neon", DType::kBF16, Activations::kFloat, Packing::kRows, matmul_bf16_f32_neon},
    {"matmul_q4_0_f32_neon", DType::kQ4_0, Activations::kFloat, Packing::kRows, matmul_q4_0_f32_neon},
    {"matmul_q4_1_f32_neon", DType::kQ4_1, Activations::kFloat, Packing::kRows, matmul_q4_1_f32_neon},
    {"matmul_q5_0_f32_neon", DType::kQ5_0, Activations::kFloat, Packing::kRows, matmul_q5_0_f32_neon},
    {"matmul_q5_1_f32_neon", DType::kQ5_1, Activations::kFloat, Packing::kRows, matmul_q5_1_f32_neon},
    {"matmul_q8_0_f32_neon", DType::kQ8_0, Activations::kFloat, Packing::kRows, matmul_q8_0_f32_neon},
    {"matmul_q2_k_f32_neon", DType::kQ2_K, Activations::kFloat, Packing::kRows, matmul_q2_k_f32_neon},
    {"matmul_q3_k_f32_neon", DType::kQ3_K, Activations::kFloat, Packing::kRows, matmul_q3_k_f32_neon},
    {"matmul_q4_k_f32_neon", DType::kQ4_K, Activations::kFloat, Packing::kRows, matmul_q4_k_f32_neon},
    {"matmul_q5_k_f32_neon", DType::kQ5_K, Activations::kFloat, Packing::kRows, matmul_q5_k_f32_neon},
    {"matmul_q6_k_f32_neon", DType::kQ6_K, Activations::kFloat, Packing::kRows, matmul_q6_k_f32_neon},
    {"matmul_iq4_nl_f32_neon", DType::kIQ4_NL, Activations::kFloat, Packing::kRows, matmul_iq4_nl_f32_neon},
    {"matmul_iq4_xs_f32_neon", DType::kIQ4_XS, Activations::kFloat, Packing::kRows, matmul_iq4_xs_f32_neon},
};

constexpr ScoreKernel kScore[] = {
    {"score_f32_neon", KvCode::kF32, KvAxis::kChannel, score_f32_neon},
    {"score_f16_neon", KvCode::kF16, KvAxis::kChannel, score_f16_neon},
    {"score_int8_channel_neon", KvCode::kInt8, KvAxis::kChannel, score_int8_channel_neon},
    {"score_int4_channel_neon", KvCode::kInt4, KvAxis::kChannel, score_int4_channel_neon},
    {"score_int8_token_neon", KvCode::kInt8, KvAxis::kToken, score_int8_token_neon},
    {"score_int4_token_neon", KvCode::kInt4, KvAxis::kToken, score_int4_token_neon},
};

constexpr MixKernel kMix[] = {
    {"mix_f32_neon", KvCode::kF32, mix_f32_neon},
    {"mix_f16_neon", KvCode::kF16, mix_f16_neon},
    {"mix_int8_neon", KvCode::kInt8, mix_int8_neon},
    {"mix_int4_neon", KvCode::kInt4, mix_int4_neon},
};

}  // namespace
}  // namespace neon

const KernelTable& NeonKernels() {
  static const KernelTable table = {
      .name = "neon",
      .matmul = neon::kMatmul,
      .score = neon::kScore,
      .softmax = neon::softmax_neon,
      .mix = neon::kMix,
      .attend_merge = neon::attend_merge_neon,
      .rms_norm = neon::rms_norm_neon,
      .quantize = neon::quantize_neon,
      .silu_mul = neon::silu_mul_neon,
      .to_half = neon::to_half_neon,
  };
  return table;
}

}  // namespace kvart

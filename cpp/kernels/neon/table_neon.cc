// The table of NEON kernels: one row a kernel.
#include "kernels/neon/kernels_neon.h"
#include "kernels/tables.h"

namespace kvart {
namespace neon {
namespace {

#define KVART_INT8_ROW(name, type) KVART_MATMUL_ROW(name, type, i8, Int8, X8, neon)
#define KVART_FLOAT_ROW(name, type) KVART_MATMUL_ROW(name, type, f32, Float, X8, neon)
constexpr MatmulKernel kMatmul[] = {KVART_CODED_TYPES(KVART_INT8_ROW) KVART_CODED_TYPES(KVART_FLOAT_ROW)
                                        KVART_NUMBER_TYPES(KVART_FLOAT_ROW)};
#undef KVART_INT8_ROW
#undef KVART_FLOAT_ROW

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
      .refine = neon::refine_neon,
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

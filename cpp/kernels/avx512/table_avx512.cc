// The table of AVX-512 kernels: what is not here, or bound by memory anyway, is AVX2's.
#include "kernels/avx512/kernels_avx512.h"
#include "kernels/tables.h"

namespace kvart {
namespace avx512 {
namespace {

#define KVART_ROW(name, type, packing) \
  { "matmul_" #name "_i8_avx512", type, Activations::kInt8, packing, matmul_##name##_i8_avx512 }

const MatmulKernel kMatmul[] = {
    KVART_ROW(q4_0, DType::kQ4_0, Packing::kRows),     KVART_ROW(q4_1, DType::kQ4_1, Packing::kRows),
    KVART_ROW(q5_0, DType::kQ5_0, Packing::kX8),       KVART_ROW(q5_1, DType::kQ5_1, Packing::kRows),
    KVART_ROW(q8_0, DType::kQ8_0, Packing::kX8),       KVART_ROW(q2_k, DType::kQ2_K, Packing::kRows),
    KVART_ROW(q3_k, DType::kQ3_K, Packing::kRows),     KVART_ROW(q4_k, DType::kQ4_K, Packing::kX8),
    KVART_ROW(q5_k, DType::kQ5_K, Packing::kRows),     KVART_ROW(q6_k, DType::kQ6_K, Packing::kX8),
    KVART_ROW(iq4_nl, DType::kIQ4_NL, Packing::kRows), KVART_ROW(iq4_xs, DType::kIQ4_XS, Packing::kRows),
};
#undef KVART_ROW

const ScoreKernel kScore[] = {
    {"score_f32_avx512", KvCode::kF32, KvAxis::kChannel, score_f32_avx512},
    {"score_f16_avx512", KvCode::kF16, KvAxis::kChannel, score_f16_avx512},
    {"score_int8_channel_avx512", KvCode::kInt8, KvAxis::kChannel, score_int8_channel_avx512},
    {"score_int4_channel_avx512", KvCode::kInt4, KvAxis::kChannel, score_int4_channel_avx512},
};

const MixKernel kMix[] = {
    {"mix_f32_avx512", KvCode::kF32, mix_f32_avx512},
    {"mix_f16_avx512", KvCode::kF16, mix_f16_avx512},
    {"mix_int8_avx512", KvCode::kInt8, mix_int8_avx512},
    {"mix_int4_avx512", KvCode::kInt4, mix_int4_avx512},
};

}  // namespace
}  // namespace avx512

const KernelTable& Avx512Kernels() {
  static const KernelTable table = {
      .name = "avx512",
      .fallback = &Avx2Kernels(),
      .matmul = avx512::kMatmul,
      .score = avx512::kScore,
      .softmax = avx512::softmax_avx512,
      .mix = avx512::kMix,
      .attend_merge = Avx2Kernels().attend_merge,
      .rms_norm = Avx2Kernels().rms_norm,
      .quantize = Avx2Kernels().quantize,
      .silu_mul = Avx2Kernels().silu_mul,
      .to_half = Avx2Kernels().to_half,
  };
  return table;
}

}  // namespace kvart

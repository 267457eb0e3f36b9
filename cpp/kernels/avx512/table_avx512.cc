// The table of AVX-512 kernels: what is not here, or bound by memory anyway, is AVX2's.
#include "kernels/avx512/kernels_avx512.h"
#include "kernels/tables.h"

namespace kvart {
namespace avx512 {
namespace {

#define KVART_INT8_ROW(name, type) KVART_MATMUL_ROW(name, type, i8, Int8, X8, avx512)
constexpr MatmulKernel kMatmul[] = {KVART_CODED_TYPES(KVART_INT8_ROW)};
#undef KVART_INT8_ROW

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
      .refine = avx512::refine_avx512,
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

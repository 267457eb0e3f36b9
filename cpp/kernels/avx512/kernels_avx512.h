// The AVX-512 kernels, as the table lists them. Definitions: kernels.h.
#pragma once

#include "kernels/kernels.h"
#include "kernels/tables.h"

namespace kvart::avx512 {

#define KVART_DECLARE(name, type) void matmul_##name##_i8_avx512(const MatmulArgs& args);
KVART_CODED_TYPES(KVART_DECLARE)
#undef KVART_DECLARE

void score_f32_avx512(const ScoreArgs& args);
void score_f16_avx512(const ScoreArgs& args);
void score_int8_channel_avx512(const ScoreArgs& args);
void score_int4_channel_avx512(const ScoreArgs& args);
void refine_avx512(const RefineArgs& args);
void softmax_avx512(const SoftmaxArgs& args);
void mix_f32_avx512(const MixArgs& args);
void mix_f16_avx512(const MixArgs& args);
void mix_int8_avx512(const MixArgs& args);
void mix_int4_avx512(const MixArgs& args);

}  // namespace kvart::avx512

// The AVX-512 kernels, as the table lists them. Definitions: kernels.h.
#pragma once

#include "kernels/kernels.h"

namespace kvart::avx512 {

// Eight rows interleaved (Packing::kX8).
void matmul_q5_0_i8_avx512(const MatmulArgs& args);
void matmul_q8_0_i8_avx512(const MatmulArgs& args);
void matmul_q4_k_i8_avx512(const MatmulArgs& args);
void matmul_q6_k_i8_avx512(const MatmulArgs& args);

// Rows as in the file (Packing::kRows).
void matmul_q4_0_i8_avx512(const MatmulArgs& args);
void matmul_q4_1_i8_avx512(const MatmulArgs& args);
void matmul_q5_1_i8_avx512(const MatmulArgs& args);
void matmul_q2_k_i8_avx512(const MatmulArgs& args);
void matmul_q3_k_i8_avx512(const MatmulArgs& args);
void matmul_q5_k_i8_avx512(const MatmulArgs& args);
void matmul_iq4_nl_i8_avx512(const MatmulArgs& args);
void matmul_iq4_xs_i8_avx512(const MatmulArgs& args);

void score_f32_avx512(const ScoreArgs& args);
void score_f16_avx512(const ScoreArgs& args);
void score_int8_channel_avx512(const ScoreArgs& args);
void score_int4_channel_avx512(const ScoreArgs& args);
void softmax_avx512(const SoftmaxArgs& args);
void mix_f32_avx512(const MixArgs& args);
void mix_f16_avx512(const MixArgs& args);
void mix_int8_avx512(const MixArgs& args);
void mix_int4_avx512(const MixArgs& args);

}  // namespace kvart::avx512

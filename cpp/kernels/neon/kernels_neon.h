// The NEON kernels, as the table lists them. Definitions: kernels.h.
#pragma once

#include "kernels/kernels.h"

namespace kvart::neon {

// Eight rows interleaved (Packing::kX8).
void matmul_q5_0_i8_neon(const MatmulArgs& args);
void matmul_q8_0_i8_neon(const MatmulArgs& args);
void matmul_q4_k_i8_neon(const MatmulArgs& args);
void matmul_q6_k_i8_neon(const MatmulArgs& args);
void matmul_f16_f32_neon(const MatmulArgs& args);

// Rows as in the file (Packing::kRows).
void matmul_q4_0_i8_neon(const MatmulArgs& args);
void matmul_q4_1_i8_neon(const MatmulArgs& args);
void matmul_q5_1_i8_neon(const MatmulArgs& args);
void matmul_q2_k_i8_neon(const MatmulArgs& args);
void matmul_q3_k_i8_neon(const MatmulArgs& args);
void matmul_q5_k_i8_neon(const MatmulArgs& args);
void matmul_iq4_nl_i8_neon(const MatmulArgs& args);
void matmul_iq4_xs_i8_neon(const MatmulArgs& args);
void matmul_f32_f32_neon(const MatmulArgs& args);
void matmul_bf16_f32_neon(const MatmulArgs& args);
void matmul_q4_0_f32_neon(const MatmulArgs& args);
void matmul_q4_1_f32_neon(const MatmulArgs& args);
void matmul_q5_0_f32_neon(const MatmulArgs& args);
void matmul_q5_1_f32_neon(const MatmulArgs& args);
void matmul_q8_0_f32_neon(const MatmulArgs& args);
void matmul_q2_k_f32_neon(const MatmulArgs& args);
void matmul_q3_k_f32_neon(const MatmulArgs& args);
void matmul_q4_k_f32_neon(const MatmulArgs& args);
void matmul_q5_k_f32_neon(const MatmulArgs& args);
void matmul_q6_k_f32_neon(const MatmulArgs& args);
void matmul_iq4_nl_f32_neon(const MatmulArgs& args);
void matmul_iq4_xs_f32_neon(const MatmulArgs& args);

void score_f32_neon(const ScoreArgs& args);
void score_f16_neon(const ScoreArgs& args);
void score_int8_channel_neon(const ScoreArgs& args);
void score_int4_channel_neon(const ScoreArgs& args);
void score_int8_token_neon(const ScoreArgs& args);
void score_int4_token_neon(const ScoreArgs& args);
void softmax_neon(const SoftmaxArgs& args);
void mix_f32_neon(const MixArgs& args);
void mix_f16_neon(const MixArgs& args);
void mix_int8_neon(const MixArgs& args);
void mix_int4_neon(const MixArgs& args);

void attend_merge_neon(const AttendMergeArgs& args);
void rms_norm_neon(const float* x, const float* w, float eps, int64_t n, int64_t cols, float* y);
void quantize_neon(const float* x, int64_t n_blocks, ActivationBlock* y);
void silu_mul_neon(const float* g, const float* u, int64_t n, float* y);
void to_half_neon(const float* x, int64_t n, uint16_t* y);

}  // namespace kvart::neon

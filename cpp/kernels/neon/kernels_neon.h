// The NEON kernels, as the table lists them. Definitions: kernels.h.
#pragma once

#include "kernels/kernels.h"
#include "kernels/tables.h"

namespace kvart::neon {

#define KVART_DECLARE(name, type) void matmul_##name##_i8_neon(const MatmulArgs& args);
KVART_CODED_TYPES(KVART_DECLARE)
#undef KVART_DECLARE
#define KVART_DECLARE(name, type) void matmul_##name##_i8_neon_i8mm(const MatmulArgs& args);
KVART_CODED_TYPES(KVART_DECLARE)
#undef KVART_DECLARE
#define KVART_DECLARE(name, type) void matmul_##name##_f32_neon(const MatmulArgs& args);
KVART_CODED_TYPES(KVART_DECLARE)
KVART_NUMBER_TYPES(KVART_DECLARE)
#undef KVART_DECLARE

void score_f32_neon(const ScoreArgs& args);
void score_f16_neon(const ScoreArgs& args);
void score_int8_channel_neon(const ScoreArgs& args);
void score_int4_channel_neon(const ScoreArgs& args);
void score_int8_token_neon(const ScoreArgs& args);
void score_int4_token_neon(const ScoreArgs& args);
void refine_neon(const RefineArgs& args);
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

// The AVX2 kernels that stand in one place of the table each. Definitions: kernels.h.
#pragma once

#include "kernels/kernels.h"

namespace kvart::avx2 {

void attend_merge_avx2(const AttendMergeArgs& args);
void rms_norm_avx2(const float* x, const float* w, float eps, int64_t n, int64_t cols, float* y);
void quantize_avx2(const float* x, int64_t n_blocks, ActivationBlock* y);
void silu_mul_avx2(const float* g, const float* u, int64_t n, float* y);
void to_half_avx2(const float* x, int64_t n, uint16_t* y);

}  // namespace kvart::avx2

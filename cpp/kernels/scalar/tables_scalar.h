// The scalar kernels, for the tables that fill their gaps with them. May depend on: kernels.h.
#pragma once

#include "kernels/kernels.h"

namespace kvart::scalar {

extern const MatmulKernel kMatmul[];
extern const size_t kMatmulCount;

extern const ScoreKernel kScore[];
extern const size_t kScoreCount;
extern const MixKernel kMix[];
extern const size_t kMixCount;

void refine_scalar(const RefineArgs& args);
void softmax_scalar(const SoftmaxArgs& args);
void attend_merge_scalar(const AttendMergeArgs& args);
void rms_norm_scalar(const float* x, const float* w, float eps, int64_t n, int64_t cols, float* y);
void quantize_scalar(const float* x, int64_t n_blocks, ActivationBlock* y);
void silu_mul_scalar(const float* g, const float* u, int64_t n, float* y);
void to_half_scalar(const float* x, int64_t n, uint16_t* y);

}  // namespace kvart::scalar

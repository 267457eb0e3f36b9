// The AVX2 attention kernels. Definitions: kernels.h.
#pragma once

#include "kernels/kernels.h"

namespace kvart::avx2 {

extern const ScoreKernel kScore[];
extern const size_t kScoreCount;
extern const MixKernel kMix[];
extern const size_t kMixCount;

void refine_avx2(const RefineArgs& args);
void softmax_avx2(const SoftmaxArgs& args);

}  // namespace kvart::avx2

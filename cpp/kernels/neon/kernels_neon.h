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

// Rows as in the file (Packing::kRows), for every format.
extern const MatmulKernel kMatmulRows[];
extern const size_t kMatmulRowsCount;

extern const AttendPageKernel kAttendPage[];
extern const size_t kAttendPageCount;

void attend_merge_neon(const AttendMergeArgs& args);
void rms_norm_neon(const float* x, const float* w, float eps, int64_t n, int64_t cols, float* y);
void quantize_neon(const float* x, int64_t n_blocks, ActivationBlock* y);
void silu_mul_neon(const float* g, const float* u, int64_t n, float* y);
void to_half_neon(const float* x, int64_t n, uint16_t* y);

}  // namespace kvart::neon

// The small kernels over rows of activations: norm, quantization, SiLU, halves, joining attention shares.
#include <cmath>
#include <cstring>
#include <limits>

#include "kernels/neon/kernels_neon.h"
#include "kernels/neon/neon_inl.h"

namespace kvart::neon {

void rms_norm_neon(const float* x, const float* w, float eps, int64_t n, int64_t cols, float* y) {
  for (int64_t i = 0; i < n; ++i, x += cols, y += cols) {
    F8 sum = Zero8();
    for (int64_t c = 0; c < cols; c += 8) {
      const F8 v = Load8(x + c);
      sum.lo = vfmaq_f32(sum.lo, v.lo, v.lo);
      sum.hi = vfmaq_f32(sum.hi, v.hi, v.hi);
    }
    const float r = 1.0f / std::sqrt(LaneSum(sum) / static_cast<float>(cols) + eps);
    for (int64_t c = 0; c < cols; c += 4) {
      vst1q_f32(y + c, vmulq_f32(vmulq_n_f32(vld1q_f32(x + c), r), vld1q_f32(w + c)));
    }
  }
}

void quantize_neon(const float* x, int64_t n_blocks, ActivationBlock* y) {
  for (int64_t b = 0; b < n_blocks; ++b, x += 32) {
    float32x4_t v[8], top = vdupq_n_f32(0);
    for (int i = 0; i < 8; ++i) {
      v[i] = vld1q_f32(x + 4 * i);
      top = Larger(vabsq_f32(v[i]), top);
    }
    const float max = vmaxvq_f32(top);  // no NaN got in
    y[b].scale = max / 127.0f;
    const float inverse = max > 0 ? 127.0f / max : 0.0f;
    int16x8_t q[4];
    for (int i = 0; i < 8; ++i) {
      const float32x4_t cut = Larger(vmulq_n_f32(v[i], inverse), vdupq_n_f32(-127.0f));
      const int16x4_t rounded = vmovn_s32(vcvtnq_s32_f32(Smaller(cut, vdupq_n_f32(127.0f))));
      q[i / 2] = i % 2 == 0 ? vcombine_s16(rounded, rounded) : vcombine_s16(vget_low_s16(q[i / 2]), rounded);
    }
    int16x4_t all = vdup_n_s16(0);
    for (int h = 0; h < 2; ++h) {
      const int8x16_t codes = vcombine_s8(vmovn_s16(q[2 * h]), vmovn_s16(q[2 * h + 1]));
      vst1q_s8(y[b].q + 16 * h, codes);
      const int16x8_t pairs = vpaddlq_s8(codes);  // lanes p, p, …: 0, 1, 0, 1, 0, 1, 0, 1
      const int16x4_t four = vadd_s16(vget_low_s16(pairs), vget_high_s16(pairs));
      const int16x4_t two = vadd_s16(four, vext_s16(four, four, 2));
      std::memcpy(y[b].pair_sums + 2 * h, &two, 2 * sizeof(int16_t));
      all = vadd_s16(all, two);
    }
    std::memcpy(y[b].pair_sums + 4, &all, 2 * sizeof(int16_t));
    y[b].sum = static_cast<float>(y[b].pair_sums[4] + y[b].pair_sums[5]) * y[b].scale;
  }
}

void silu_mul_neon(const float* g, const float* u, int64_t n, float* y) {
  const float32x4_t one = vdupq_n_f32(1.0f);
  const auto silu = [one](float32x4_t v) {
    return vdivq_f32(v, vaddq_f32(one, Exp2(vmulq_n_f32(vnegq_f32(v), kLog2E))));
  };
  int64_t i = 0;
  for (; i + 4 <= n; i += 4) vst1q_f32(y + i, vmulq_f32(silu(vld1q_f32(g + i)), vld1q_f32(u + i)));
  for (; i < n; ++i) y[i] = vgetq_lane_f32(silu(vdupq_n_f32(g[i])), 0) * u[i];
}

void to_half_neon(const float* x, int64_t n, uint16_t* y) {
  int64_t i = 0;
  for (; i + 4 <= n; i += 4) vst1_u16(y + i, vreinterpret_u16_f16(vcvt_f16_f32(vld1q_f32(x + i))));
  for (; i < n; ++i) y[i] = vget_lane_u16(vreinterpret_u16_f16(vcvt_f16_f32(vdupq_n_f32(x[i]))), 0);
}

void attend_merge_neon(const AttendMergeArgs& a) {
  for (int64_t row = 0; row < a.n_rows; ++row) {
    const float m = a.m[row];
    if (m == -std::numeric_limits<float>::infinity()) continue;
    const float top = a.run_m[row] < m ? m : a.run_m[row];
    const float keep = vgetq_lane_f32(Exp2(vdupq_n_f32(a.run_m[row] - top)), 0);
    const float take = vgetq_lane_f32(Exp2(vdupq_n_f32(m - top)), 0);
    a.run_m[row] = top;
    a.run_l[row] = std::fma(a.l[row], take, a.run_l[row] * keep);
    const float* o = a.o + row * a.head_dim;
    float* run_o = a.run_o + row * a.head_dim;
    for (int d = 0; d < a.head_dim; d += 4) {
      const float32x4_t kept = vmulq_n_f32(vld1q_f32(run_o + d), keep);
      vst1q_f32(run_o + d, vfmaq_n_f32(kept, vld1q_f32(o + d), take));
    }
  }
}

}  // namespace kvart::neon

// Integer dots between int8 vectors (queries, weights of values) and the codes of a K/V block, shared by scores and
// mixes. May depend on: kernels.h. Included by kernels/neon only.
#pragma once

#include "kernels/neon/neon_inl.h"

namespace kvart::neon {

constexpr int kMaxAlong = 1024;  // channels of a head, or tokens of a page

// One float vector as int8.
struct Int8Vector {
  int8_t z[kMaxAlong + 8];  // room for the last load of 16
  int32_t sum;              // of z
  float step;               // value of z = 1
  float base;               // what the centres add
};

// x: (n), n a multiple of 8. Fills z, sum and step.
inline void ToInt8(const float* x, int n, Int8Vector* out) {
  float32x4_t top = vdupq_n_f32(0);
  for (int i = 0; i < n; i += 4) top = Larger(vabsq_f32(vld1q_f32(x + i)), top);
  const float max = vmaxvq_f32(top);  // no NaN got in
  out->step = max / 127.0f;
  const float inverse = max > 0 ? 127.0f / max : 0.0f;
  const auto quantized = [inverse](float32x4_t v) {
    const float32x4_t cut = Larger(vmulq_n_f32(v, inverse), vdupq_n_f32(-127.0f));
    return vmovn_s32(vcvtnq_s32_f32(Smaller(cut, vdupq_n_f32(127.0f))));
  };
  int32x4_t sum = vdupq_n_s32(0);
  for (int i = 0; i < n; i += 8) {
    const int16x8_t words = vcombine_s16(quantized(vld1q_f32(x + i)), quantized(vld1q_f32(x + i + 4)));
    vst1_s8(out->z + i, vmovn_s16(words));
    sum = vpadalq_s16(sum, words);
  }
  vst1_s8(out->z + n, vdup_n_s8(0));
  out->sum = vaddvq_s32(sum);
}

// x, the vector that v was made of → what v leaves of it: fma(-z, step, x). n: a multiple of 8.
inline void TakeAway(const Int8Vector& v, int n, float* x) {
  const float32x4_t step = vdupq_n_f32(v.step);
  for (int i = 0; i < n; i += 8) {
    const int16x8_t z = vmovl_s8(vld1_s8(v.z + i));
    const float32x4_t lo = vcvtq_f32_s32(vmovl_s16(vget_low_s16(z))), hi = vcvtq_f32_s32(vmovl_s16(vget_high_s16(z)));
    vst1q_f32(x + i, vfmsq_f32(vld1q_f32(x + i), lo, step));
    vst1q_f32(x + i + 4, vfmsq_f32(vld1q_f32(x + i + 4), hi, step));
  }
}

// The codes of eight elements of the sum: element 4 i + j of lane 4 h + l is byte 4 l + j of w[2 * i + h].
template <int kBits>
inline void LoadCodes(const uint8_t* codes, int8x16_t* w) {
  if constexpr (kBits == 4) {
    const uint8x16_t lo = vld1q_u8(codes), hi = vld1q_u8(codes + 16), low = vdupq_n_u8(15);
    w[0] = vreinterpretq_s8_u8(vandq_u8(lo, low));
    w[1] = vreinterpretq_s8_u8(vandq_u8(hi, low));
    w[2] = vreinterpretq_s8_u8(vshrq_n_u8(lo, 4));
    w[3] = vreinterpretq_s8_u8(vshrq_n_u8(hi, 4));
  } else {
    KVART_UNROLL
    for (int i = 0; i < 4; ++i) w[i] = vreinterpretq_s8_u8(vld1q_u8(codes + 16 * i));
  }
}

// Eight lanes: Σ z n as floats, or Σ z (2 n - 15) for four bits.
// dots: (R); n, a multiple of 8: how many elements the sum has; codes: kBits * n bytes.
template <int kBits, int R>
inline void Dots(const uint8_t* codes, int n, const Int8Vector* x, F8* dots) {
  constexpr int kBytes = 8 * kBits;  // of eight elements
  int32x4_t lo[R], hi[R];
  KVART_UNROLL
  for (int r = 0; r < R; ++r) lo[r] = hi[r] = vdupq_n_s32(0);
  int i = 0;
  for (; i + 16 <= n; i += 16, codes += 2 * kBytes) {
    int8x16_t w[8];
    LoadCodes<kBits>(codes, w);
    LoadCodes<kBits>(codes + kBytes, w + 4);
    KVART_UNROLL
    for (int r = 0; r < R; ++r) {
      const int8x16_t z = vld1q_s8(x[r].z + i);
      lo[r] = vdotq_laneq_s32(lo[r], w[0], z, 0);
      hi[r] = vdotq_laneq_s32(hi[r], w[1], z, 0);
      lo[r] = vdotq_laneq_s32(lo[r], w[2], z, 1);
      hi[r] = vdotq_laneq_s32(hi[r], w[3], z, 1);
      lo[r] = vdotq_laneq_s32(lo[r], w[4], z, 2);
      hi[r] = vdotq_laneq_s32(hi[r], w[5], z, 2);
      lo[r] = vdotq_laneq_s32(lo[r], w[6], z, 3);
      hi[r] = vdotq_laneq_s32(hi[r], w[7], z, 3);
    }
  }
  if (i < n) {
    int8x16_t w[4];
    LoadCodes<kBits>(codes, w);
    KVART_UNROLL
    for (int r = 0; r < R; ++r) {
      const int8x16_t z = vld1q_s8(x[r].z + i);
      lo[r] = vdotq_laneq_s32(lo[r], w[0], z, 0);
      hi[r] = vdotq_laneq_s32(hi[r], w[1], z, 0);
      lo[r] = vdotq_laneq_s32(lo[r], w[2], z, 1);
      hi[r] = vdotq_laneq_s32(hi[r], w[3], z, 1);
    }
  }
  KVART_UNROLL
  for (int r = 0; r < R; ++r) {
    if constexpr (kBits == 4) {
      const int32x4_t less = vdupq_n_s32(15 * x[r].sum);
      lo[r] = vsubq_s32(vshlq_n_s32(lo[r], 1), less);
      hi[r] = vsubq_s32(vshlq_n_s32(hi[r], 1), less);
    }
    dots[r] = {vcvtq_f32_s32(lo[r]), vcvtq_f32_s32(hi[r])};
  }
}

// Calls F<n>::Run(args) for n = 1 … 8 rows.
template <template <int> class F, class Args>
void ByRows(int n, const Args& args) {
  switch (n) {
    case 0: break;
    case 1: F<1>::Run(args); break;
    case 2: F<2>::Run(args); break;
    case 3: F<3>::Run(args); break;
    case 4: F<4>::Run(args); break;
    case 5: F<5>::Run(args); break;
    case 6: F<6>::Run(args); break;
    case 7: F<7>::Run(args); break;
    default: F<8>::Run(args); break;
  }
}

}  // namespace kvart::neon

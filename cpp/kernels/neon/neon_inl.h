// What the NEON kernels share: loads, and the definitions of Exp2 and LaneSum. Included by kernels/neon only.
// May depend on: kernels.h.
#pragma once

#include <arm_neon.h>

#include <cstdint>

#include "kernels/kernels.h"

// Loops over arrays of vectors: unrolled, the arrays become registers.
#define KVART_UNROLL _Pragma("GCC unroll 16")

namespace kvart::neon {
// Without a name, here and in the other helpers: files with more instructions (…_i8mm.cc) include them too, and the
// linker must not give their copies to everybody.
namespace {

// Eight float lanes: a row of the definitions in kernels.h.
struct F8 {
  float32x4_t lo, hi;
};

inline F8 Zero8() {
  return {vdupq_n_f32(0), vdupq_n_f32(0)};
}
inline F8 Load8(const float* p) {
  return {vld1q_f32(p), vld1q_f32(p + 4)};
}
inline F8 Load8(const uint16_t* p) {  // halves, at any byte address
  const float16x8_t h = vreinterpretq_f16_u8(vld1q_u8(reinterpret_cast<const uint8_t*>(p)));
  return {vcvt_f32_f16(vget_low_f16(h)), vcvt_high_f32_f16(h)};
}
inline void Store8(float* p, const F8& a) {
  vst1q_f32(p, a.lo);
  vst1q_f32(p + 4, a.hi);
}

// a > b ? a : b and a < b ? a : b. FMAX and FMIN would pass NaN on; here it loses to b, as the definitions want.
inline float32x4_t Larger(float32x4_t a, float32x4_t b) {
  return vbslq_f32(vcgtq_f32(a, b), a, b);
}
inline float32x4_t Smaller(float32x4_t a, float32x4_t b) {
  return vbslq_f32(vcltq_f32(a, b), a, b);
}

inline float32x4_t Exp2(float32x4_t x) {
  x = Larger(x, vdupq_n_f32(-kExp2Limit));
  x = Smaller(x, vdupq_n_f32(kExp2Limit));
  const float32x4_t round = vdupq_n_f32(kExp2Round);
  const float32x4_t shifted = vaddq_f32(x, round);
  const float32x4_t f = vsubq_f32(x, vsubq_f32(shifted, round));
  float32x4_t p = vdupq_n_f32(kExp2[6]);
  for (int i = 5; i >= 0; --i) p = vfmaq_f32(vdupq_n_f32(kExp2[i]), p, f);
  const int32x4_t n = vshlq_n_s32(vreinterpretq_s32_f32(shifted), 23);
  return vreinterpretq_f32_s32(vaddq_s32(vreinterpretq_s32_f32(p), n));
}

inline float LaneSum(const F8& a) {
  const float32x4_t s = vaddq_f32(a.lo, a.hi);                        // a0+a4, a1+a5, a2+a6, a3+a7
  const float32x2_t t = vadd_f32(vget_low_f32(s), vget_high_f32(s));  // (0)+(2), (1)+(3)
  return vget_lane_f32(t, 0) + vget_lane_f32(t, 1);
}

}  // namespace
}  // namespace kvart::neon

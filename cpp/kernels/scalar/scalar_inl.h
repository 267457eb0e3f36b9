// What the scalar kernels share: the definitions of Exp2 and LaneSum. Included by kernels/scalar only: other instruction sets
// have their own, so that no inline function exists twice with different flags.
#pragma once

#include <bit>
#include <cmath>
#include <cstdint>

#include "kernels/kernels.h"

namespace kvart::scalar {

inline float Exp2(float x) {
  x = x > -kExp2Limit ? x : -kExp2Limit;  // NaN becomes the limit, as with the vector instructions
  x = x < kExp2Limit ? x : kExp2Limit;
  const float shifted = x + kExp2Round;
  const float f = x - (shifted - kExp2Round);
  float p = kExp2[6];
  for (int i = 5; i >= 0; --i) p = std::fma(p, f, kExp2[i]);
  const uint32_t n = std::bit_cast<uint32_t>(shifted) << 23;
  return std::bit_cast<float>(std::bit_cast<uint32_t>(p) + n);
}

inline float LaneSum(const float* a) {  // a: (8)
  return ((a[0] + a[4]) + (a[2] + a[6])) + ((a[1] + a[5]) + (a[3] + a[7]));
}

}  // namespace kvart::scalar

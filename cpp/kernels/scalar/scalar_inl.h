// What the scalar kernels share: the definitions of Exp2 and LaneSum. Included by kernels/scalar only: other
// instruction sets have their own, so that no inline function exists twice with different flags.
#pragma once

#include <bit>
#include <cmath>
#include <cstdint>

#include "kernels/kernels.h"
#include "quant/half.h"
#include "quant/kv_block.h"

namespace kvart::scalar {

constexpr int kMaxHeadDim = 1024;

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

// Scale, centre and length of a group's entry in an integer K/V block; and a code: n for eight bits, 2 n - 15 for four.
inline float HalfAt(const uint8_t* block, size_t byte) {
  return HalfToFloat(static_cast<uint16_t>(block[byte] | block[byte + 1] << 8));
}
inline float ScaleOf(const KvBlock& b, const uint8_t* block, int g, int i) {
  return HalfAt(block, b.params() + static_cast<size_t>(g * b.n_per_group()) * 4 + static_cast<size_t>(i) * 2);
}
inline float CentreOf(const KvBlock& b, const uint8_t* block, int g, int i) {
  return HalfAt(
      block, b.params() + static_cast<size_t>(g * b.n_per_group()) * 4 + static_cast<size_t>(b.n_per_group() + i) * 2);
}
inline float NormOf(const KvBlock& b, const uint8_t* block, int t) {
  return HalfAt(block, b.bytes() - static_cast<size_t>(b.tokens() - t) * 2);
}
inline int32_t CodeOf(const KvBlock& b, const uint8_t* block, int t, int c) {
  const KvBlock::At at = b.CodeAt(t, c);
  return b.format().code == KvCode::kInt4 ? 2 * (block[at.byte] >> at.shift & 15) - 15
                                          : static_cast<int8_t>(block[at.byte]);
}

// x as int8: z = x * (127 / max|x|) to nearest even. Returns the step, max|x| / 127.
inline float QuantizeVector(const float* x, int n, int8_t* z) {
  float top = 0;
  for (int i = 0; i < n; ++i) top = std::fabs(x[i]) > top ? std::fabs(x[i]) : top;
  const float inverse = top > 0 ? 127.0f / top : 0.0f;
  for (int i = 0; i < n; ++i) {
    float scaled = x[i] * inverse;
    scaled = scaled > -127.0f ? scaled : -127.0f;
    scaled = scaled < 127.0f ? scaled : 127.0f;
    z[i] = static_cast<int8_t>((scaled + kExp2Round) - kExp2Round);
  }
  return top / 127.0f;
}

}  // namespace kvart::scalar

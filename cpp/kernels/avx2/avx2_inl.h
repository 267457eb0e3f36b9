// What the AVX2 kernels share. Included by kernels/avx2 only.
#pragma once

#include <immintrin.h>

#include <cstdint>

#include "kernels/kernels.h"

// GCC reassociates a chain of integer vector adds into a tree and spills every product; an empty asm pins the order.
#define KVART_PIN(x) asm("" : "+x"(x))

namespace kvart::avx2 {

inline __m256i LoadInt(const void* p) {
  return _mm256_loadu_si256(static_cast<const __m256i*>(p));
}
inline __m256 LoadHalf8(const void* p) {
  return _mm256_cvtph_ps(_mm_loadu_si128(static_cast<const __m128i*>(p)));
}
inline __m256i Broadcast4(const void* p) {  // four bytes to every lane
  return _mm256_castps_si256(_mm256_broadcast_ss(static_cast<const float*>(p)));
}

// See the definitions of Exp2 and LaneSum in kernels.h.
template <bool kNotAboveZero = false>
inline __m256 Exp2(__m256 x) {
  x = _mm256_max_ps(x, _mm256_set1_ps(-kExp2Limit));  // the second operand wins over NaN
  if constexpr (!kNotAboveZero) x = _mm256_min_ps(x, _mm256_set1_ps(kExp2Limit));
  const __m256 round = _mm256_set1_ps(kExp2Round);
  const __m256 shifted = _mm256_add_ps(x, round);
  const __m256 f = _mm256_sub_ps(x, _mm256_sub_ps(shifted, round));
  __m256 p = _mm256_set1_ps(kExp2[6]);
  for (int i = 5; i >= 0; --i) p = _mm256_fmadd_ps(p, f, _mm256_set1_ps(kExp2[i]));
  return _mm256_castsi256_ps(
      _mm256_add_epi32(_mm256_castps_si256(p), _mm256_slli_epi32(_mm256_castps_si256(shifted), 23)));
}

inline float LaneSum(__m256 a) {
  const __m128 s = _mm_add_ps(_mm256_castps256_ps128(a), _mm256_extractf128_ps(a, 1));  // a0+a4, a1+a5, a2+a6, a3+a7
  const __m128 t = _mm_add_ps(s, _mm_movehl_ps(s, s));                                  // (0)+(2), (1)+(3)
  return _mm_cvtss_f32(_mm_add_ss(t, _mm_movehdup_ps(t)));
}

inline float LaneMax(__m256 a) {
  __m128 s = _mm_max_ps(_mm256_castps256_ps128(a), _mm256_extractf128_ps(a, 1));
  s = _mm_max_ps(s, _mm_movehl_ps(s, s));
  return _mm_cvtss_f32(_mm_max_ss(s, _mm_movehdup_ps(s)));
}

}  // namespace kvart::avx2

// What the AVX-512 kernels share. Included by kernels/avx512 only. VNNI is assumed: without it the AVX2 table serves.
#pragma once

#include <immintrin.h>

#include <cstdint>

#include "kernels/kernels.h"

// GCC keeps two copies of a sum in turn, and moves all of them each time around; an empty asm keeps it where it is.
#define KVART_PIN(x) asm("" : "+v"(x))

namespace kvart::avx512 {

inline __m512i LoadInt(const void* p) {
  return _mm512_loadu_si512(p);
}
// Two 32-byte vectors side by side.
inline __m512i LoadPair(const void* low, const void* high) {
  const __m256i first = _mm256_loadu_si256(static_cast<const __m256i*>(low));
  return _mm512_inserti64x4(_mm512_castsi256_si512(first), _mm256_loadu_si256(static_cast<const __m256i*>(high)), 1);
}
inline __m512 LoadHalf16(const void* p, __mmask16 lanes) {  // zeros elsewhere
  return _mm512_cvtph_ps(_mm256_maskz_loadu_epi16(lanes, p));
}
inline __m256 LoadHalf8(const void* p) {
  return _mm256_cvtph_ps(_mm_loadu_si128(static_cast<const __m128i*>(p)));
}
inline __m512i Broadcast4(const void* p) {  // four bytes to every lane
  return _mm512_castps_si512(_mm512_set1_ps(*static_cast<const float*>(p)));
}
inline __m512i Low4(__m512i v) {
  return _mm512_and_si512(v, _mm512_set1_epi8(15));
}
inline __m512i High4(__m512i v) {
  return Low4(_mm512_srli_epi16(v, 4));
}
// The two halves of sixteen lanes, added.
inline __m256i FoldInt(__m512i v) {
  return _mm256_add_epi32(_mm512_castsi512_si256(v), _mm512_extracti64x4_epi64(v, 1));
}

// See the definitions of Exp2 and LaneSum in kernels.h.
template <bool kNotAboveZero = false>
inline __m512 Exp2(__m512 x) {
  x = _mm512_max_ps(x, _mm512_set1_ps(-kExp2Limit));  // the second operand wins over NaN
  if constexpr (!kNotAboveZero) x = _mm512_min_ps(x, _mm512_set1_ps(kExp2Limit));
  const __m512 round = _mm512_set1_ps(kExp2Round);
  const __m512 shifted = _mm512_add_ps(x, round);
  const __m512 f = _mm512_sub_ps(x, _mm512_sub_ps(shifted, round));
  __m512 p = _mm512_set1_ps(kExp2[6]);
  for (int i = 5; i >= 0; --i) p = _mm512_fmadd_ps(p, f, _mm512_set1_ps(kExp2[i]));
  return _mm512_castsi512_ps(
      _mm512_add_epi32(_mm512_castps_si512(p), _mm512_slli_epi32(_mm512_castps_si512(shifted), 23)));
}

inline float LaneSum(__m256 a) {
  const __m128 s = _mm_add_ps(_mm256_castps256_ps128(a), _mm256_extractf128_ps(a, 1));  // a0+a4, a1+a5, a2+a6, a3+a7
  const __m128 t = _mm_add_ps(s, _mm_movehl_ps(s, s));                                  // (0)+(2), (1)+(3)
  return _mm_cvtss_f32(_mm_add_ss(t, _mm_movehdup_ps(t)));
}

}  // namespace kvart::avx512

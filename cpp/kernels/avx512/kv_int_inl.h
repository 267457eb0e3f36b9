// Integer dots between int8 vectors (queries, weights of values) and the codes of a K/V block, shared by scores and
// mixes: sixteen lanes are two neighbouring eights of tokens (scores) or of channels (mixes).
#pragma once

#include "kernels/avx512/avx512_inl.h"

namespace kvart::avx512 {

constexpr int kMaxAlong = 1024;  // channels of a head, or tokens of a page

// One float vector as int8.
struct Int8Vector {
  alignas(64) int8_t z[kMaxAlong + 16];  // room for the last load of 16
  int32_t sum;                           // of z
  float step;                            // value of z = 1
  float base;                            // what the centres add
};

inline __mmask16 Lanes(int n) {
  return static_cast<__mmask16>(n >= 16 ? 0xffff : (1 << n) - 1);
}

// x: (n), n a multiple of 8. Fills z, sum and step.
inline void ToInt8(const float* x, int n, Int8Vector* out) {
  __m512 top = _mm512_setzero_ps();
  for (int i = 0; i < n; i += 16) {
    top = _mm512_max_ps(_mm512_abs_ps(_mm512_maskz_loadu_ps(Lanes(n - i), x + i)), top);  // NaN: top, the second, stays
  }
  const float max = _mm512_reduce_max_ps(top);
  out->step = max / 127.0f;
  const __m512 inverse = _mm512_set1_ps(max > 0 ? 127.0f / max : 0.0f);
  __m512i sum = _mm512_setzero_si512();
  for (int i = 0; i < n; i += 16) {
    const __m512 s = _mm512_mul_ps(_mm512_maskz_loadu_ps(Lanes(n - i), x + i), inverse);
    const __m512 cut = _mm512_min_ps(_mm512_max_ps(s, _mm512_set1_ps(-127.0f)), _mm512_set1_ps(127.0f));
    const __m512i q = _mm512_maskz_cvtps_epi32(Lanes(n - i), cut);
    sum = _mm512_add_epi32(sum, q);
    _mm512_mask_cvtepi32_storeu_epi8(out->z + i, Lanes(n - i), q);
  }
  out->sum = _mm512_reduce_add_epi32(sum);
}

// x, the vector that v was made of → what v leaves of it: fma(-z, step, x). n: a multiple of 8.
inline void TakeAway(const Int8Vector& v, int n, float* x) {
  const __m512 step = _mm512_set1_ps(v.step);
  for (int i = 0; i < n; i += 16) {
    const __m128i z = _mm_loadu_si128(reinterpret_cast<const __m128i*>(v.z + i));
    const __m512 taken = _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(z)), from = _mm512_maskz_loadu_ps(Lanes(n - i), x + i);
    _mm512_mask_storeu_ps(x + i, Lanes(n - i), _mm512_fnmadd_ps(taken, step, from));
  }
}

// acc[r] += Σ z[r] n over the n elements of the sum. low, high: codes of the lower and the upper eight lanes, kBits * n
// bytes each; 8 bits: n is the code + 128.
template <int kBits, int R>
__attribute__((always_inline)) inline void Dots(const uint8_t* low, const uint8_t* high, int n,
                                                const Int8Vector* const* x, __m512i* acc) {
#pragma GCC unroll 8
  for (int r = 0; r < R; ++r) acc[r] = _mm512_setzero_si512();
#pragma GCC unroll 1
  for (int i = 0; i < n; i += 8) {
    __m512i first, second;
    if constexpr (kBits == 4) {
      const __m512i v = LoadPair(low + i * 4, high + i * 4);
      first = Low4(v);
      second = High4(v);
    } else {
      const __m512i flip = _mm512_set1_epi8(static_cast<char>(0x80));
      first = _mm512_xor_si512(LoadPair(low + i * 8, high + i * 8), flip);
      second = _mm512_xor_si512(LoadPair(low + i * 8 + 32, high + i * 8 + 32), flip);
    }
#pragma GCC unroll 8
    for (int r = 0; r < R; ++r) acc[r] = _mm512_dpbusd_epi32(acc[r], first, Broadcast4(x[r]->z + i));
#pragma GCC unroll 8
    for (int r = 0; r < R; ++r) acc[r] = _mm512_dpbusd_epi32(acc[r], second, Broadcast4(x[r]->z + i + 4));
  }
}

// What the sums of Dots stand for: Σ z (2 n - 15) of four bits, Σ z n of eight.
template <int kBits>
inline __m512 DotValue(__m512i acc, const Int8Vector& x) {
  const __m512i sum = kBits == 4 ? _mm512_sub_epi32(_mm512_slli_epi32(acc, 1), _mm512_set1_epi32(15 * x.sum))
                                 : _mm512_sub_epi32(acc, _mm512_set1_epi32(128 * x.sum));
  return _mm512_cvtepi32_ps(sum);
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

}  // namespace kvart::avx512

// Integer dots between int8 vectors (queries, weights of values) and the codes of a K/V block, shared by scores and
// mixes.
#pragma once

#include <cstring>

#include "kernels/avx2/avx2_inl.h"

namespace kvart::avx2 {

constexpr int kMaxAlong = 1024;  // channels of a head, or tokens of a page
constexpr int kChunk = 64;       // elements whose 4-bit products an int16 lane can hold: 32 * 127 * 8 < 2^15

// One float vector as int8: z, padded with zeros to whole chunks.
struct Int8Vector {
  alignas(32) int8_t z[kMaxAlong + kChunk];
  int32_t start[kMaxAlong / kChunk + 1];  // a chunk's pair of int16: -8 times what each lane adds up
  int32_t sum;                            // of z
  float step;                             // value of z = 1
  float base;                             // what the centres add
};

inline float MaxMagnitude(const float* x, int n) {
  const __m256 magnitude = _mm256_castsi256_ps(_mm256_set1_epi32(0x7fffffff));
  __m256 top = _mm256_setzero_ps();
  for (int i = 0; i < n; i += 8) top = _mm256_max_ps(_mm256_and_ps(_mm256_loadu_ps(x + i), magnitude), top);
  return LaneMax(top);
}

// x: (n), n a multiple of 8. Fills z, start, sum and step.
inline void ToInt8(const float* x, int n, Int8Vector* out) {
  const float top = MaxMagnitude(x, n);
  out->step = top / 127.0f;
  const __m256 inverse = _mm256_set1_ps(top > 0 ? 127.0f / top : 0.0f);
  for (int i = 0; i < n; i += 8) {
    __m256 s = _mm256_max_ps(_mm256_mul_ps(_mm256_loadu_ps(x + i), inverse), _mm256_set1_ps(-127.0f));
    const __m256i q = _mm256_cvtps_epi32(_mm256_min_ps(s, _mm256_set1_ps(127.0f)));
    const __m128i words = _mm_packs_epi32(_mm256_castsi256_si128(q), _mm256_extracti128_si256(q, 1));
    _mm_storel_epi64(reinterpret_cast<__m128i*>(out->z + i), _mm_packs_epi16(words, words));
  }
  std::memset(out->z + n, 0, static_cast<size_t>((n + kChunk - 1) / kChunk * kChunk - n));
  out->sum = 0;
  const __m256i one = _mm256_set1_epi8(1);
  for (int i = 0; i < n; i += kChunk) {
    __m256i pairs = _mm256_add_epi16(_mm256_maddubs_epi16(one, LoadInt(out->z + i)),
                                     _mm256_maddubs_epi16(one, LoadInt(out->z + i + 32)));
    __m128i p = _mm_add_epi16(_mm256_castsi256_si128(pairs), _mm256_extracti128_si256(pairs, 1));
    p = _mm_add_epi16(p, _mm_shuffle_epi32(p, 0x4e));
    p = _mm_add_epi16(p, _mm_shuffle_epi32(p, 0xb1));
    const int32_t both = _mm_cvtsi128_si32(p);
    out->sum += static_cast<int16_t>(both) + (both >> 16);
    out->start[i / kChunk] = _mm_cvtsi128_si32(_mm_sub_epi16(_mm_setzero_si128(), _mm_slli_epi16(p, 3)));
  }
}

// x, the vector that v was made of → what v leaves of it: fma(-z, step, x). n: a multiple of 8.
inline void TakeAway(const Int8Vector& v, int n, float* x) {
  const __m256 step = _mm256_set1_ps(v.step);
  for (int i = 0; i < n; i += 8) {
    const __m128i z = _mm_loadl_epi64(reinterpret_cast<const __m128i*>(v.z + i));
    const __m256 taken = _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(z));
    _mm256_storeu_ps(x + i, _mm256_fnmadd_ps(taken, step, _mm256_loadu_ps(x + i)));
  }
}

// dots[r], eight lanes: Σ z (2 n - 15) over the n elements of the sum; codes: n / 8 vectors.
template <int R>
__attribute__((always_inline)) inline void Dots4(const uint8_t* codes, int n, const Int8Vector* const* x,
                                                 __m256i* dots) {
  const __m256i low = _mm256_set1_epi8(15), one = _mm256_set1_epi16(1);
  __m256i total[R];
#pragma GCC unroll 8
  for (int r = 0; r < R; ++r) total[r] = _mm256_setzero_si256();
#pragma GCC unroll 1
  for (int chunk = 0; chunk < n; chunk += kChunk) {
    __m256i acc[R];
#pragma GCC unroll 8
    for (int r = 0; r < R; ++r) acc[r] = _mm256_set1_epi32(x[r]->start[chunk / kChunk]);
    const int end = chunk + kChunk < n ? chunk + kChunk : n;
#pragma GCC unroll 1
    for (int i = chunk; i < end; i += 8) {
      const __m256i v = LoadInt(codes + i * 4);
      const __m256i first = _mm256_and_si256(v, low), second = _mm256_and_si256(_mm256_srli_epi16(v, 4), low);
#pragma GCC unroll 8
      for (int r = 0; r < R; ++r) {
        acc[r] = _mm256_add_epi16(acc[r], _mm256_maddubs_epi16(first, Broadcast4(x[r]->z + i)));
        KVART_PIN(acc[r]);
      }
#pragma GCC unroll 8
      for (int r = 0; r < R; ++r) {
        acc[r] = _mm256_add_epi16(acc[r], _mm256_maddubs_epi16(second, Broadcast4(x[r]->z + i + 4)));
        KVART_PIN(acc[r]);
      }
    }
#pragma GCC unroll 8
    for (int r = 0; r < R; ++r) total[r] = _mm256_add_epi32(total[r], _mm256_madd_epi16(acc[r], one));
  }
#pragma GCC unroll 8
  for (int r = 0; r < R; ++r) dots[r] = _mm256_add_epi32(_mm256_slli_epi32(total[r], 1), _mm256_set1_epi32(x[r]->sum));
}

// dots[r], eight lanes: Σ z n; codes: n / 4 vectors of signed bytes.
template <int R>
__attribute__((always_inline)) inline void Dots8(const uint8_t* codes, int n, const Int8Vector* const* x,
                                                 __m256i* dots) {
  const __m256i one = _mm256_set1_epi16(1);
#pragma GCC unroll 8
  for (int r = 0; r < R; ++r) dots[r] = _mm256_setzero_si256();
#pragma GCC unroll 1
  for (int i = 0; i < n; i += 4) {
    const __m256i v = LoadInt(codes + i * 8), magnitude = _mm256_sign_epi8(v, v);
#pragma GCC unroll 8
    for (int r = 0; r < R; ++r) {
      const __m256i z = _mm256_sign_epi8(Broadcast4(x[r]->z + i), v);
      dots[r] = _mm256_add_epi32(dots[r], _mm256_madd_epi16(_mm256_maddubs_epi16(magnitude, z), one));
      KVART_PIN(dots[r]);
    }
  }
}

template <int kBits, int R>
__attribute__((always_inline)) inline void Dots(const uint8_t* codes, int n, const Int8Vector* const* x,
                                                __m256i* dots) {
  if constexpr (kBits == 4)
    Dots4<R>(codes, n, x, dots);
  else
    Dots8<R>(codes, n, x, dots);
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

}  // namespace kvart::avx2

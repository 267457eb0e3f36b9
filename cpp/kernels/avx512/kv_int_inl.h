// Integer dots between int8 vectors (queries, weights of values) and the codes of a K/V block, shared by scores and
// mixes: sixteen lanes are two neighbouring eights of tokens (scores) or of channels (mixes).
#pragma once

#include <algorithm>

#include "kernels/avx512/avx512_inl.h"

namespace kvart::avx512 {

constexpr int kMaxAlong = 1024;  // channels of a head, or tokens of a page

inline __mmask16 Lanes(int n) {
  return static_cast<__mmask16>(n >= 16 ? 0xffff : (1 << n) - 1);
}
inline __mmask16 LanesOfEights(int n) {
  return static_cast<__mmask16>(n >= 2 ? 0xffff : n == 1 ? 0xff : 0);
}

// Float vectors as int8, eight elements of each row in turn, as Dots reads them.
template <int kRows>
struct Int8Rows {
  alignas(64) int8_t z[kMaxAlong / 8][kRows][8];
  int32_t start[kRows];  // of a dot: minus what codes without sign add too much
  float step[kRows];     // value of z = 1
  float base[kRows];     // what the centres add
};

// The float vectors: sixteen elements of each row in turn, and their largest magnitudes by lanes.
template <int R, int kAlong>
struct FloatRows {
  alignas(64) float u[kAlong / 16][R][16];
  __m512 top[R];
  FloatRows() {
    for (int r = 0; r < R; ++r) top[r] = _mm512_setzero_ps();
  }
  void Put(int i, int r, __m512 v) {  // element i of row r and the fifteen behind
    _mm512_store_ps(u[i / 16][r], v);
    top[r] = _mm512_max_ps(_mm512_abs_ps(v), top[r]);  // NaN: top, the second, stays
  }
};

// The rows of x, of n elements (a multiple of 8; zeros behind), as rows [first, first + R) of out. With kLeave, what
// they leave, fma(-z, step, x), becomes x. All rows go through each step together: their chains overlap.
template <int kBits, bool kLeave, int R, int kAlong, int kRows>
__attribute__((always_inline)) inline void ToInt8(FloatRows<R, kAlong>* x, int n, int first, Int8Rows<kRows>* out) {
  __m512 inverse[R], step[R];
  __m512i sum[R];
#pragma GCC unroll 8
  for (int r = 0; r < R; ++r) {
    const float max = _mm512_reduce_max_ps(x->top[r]);
    out->step[first + r] = max / 127.0f;
    step[r] = _mm512_set1_ps(out->step[first + r]);
    inverse[r] = _mm512_set1_ps(max > 0 ? 127.0f / max : 0.0f);
    sum[r] = _mm512_setzero_si512();
    x->top[r] = _mm512_setzero_ps();
  }
#pragma GCC unroll 1
  for (int i = 0; i < n; i += 16) {
#pragma GCC unroll 8
    for (int r = 0; r < R; ++r) {
      const __m512 v = _mm512_load_ps(x->u[i / 16][r]), s = _mm512_mul_ps(v, inverse[r]);
      const __m512i q =
          _mm512_cvtps_epi32(_mm512_min_ps(_mm512_max_ps(s, _mm512_set1_ps(-127.0f)), _mm512_set1_ps(127.0f)));
      sum[r] = _mm512_add_epi32(sum[r], q);
      const __m128i bytes = _mm512_cvtepi32_epi8(q);
      _mm_storel_epi64(reinterpret_cast<__m128i*>(out->z[i / 8][first + r]), bytes);
      if (i + 8 < n) _mm_storeh_pi(reinterpret_cast<__m64*>(out->z[i / 8 + 1][first + r]), _mm_castsi128_ps(bytes));
      if constexpr (kLeave) x->Put(i, r, _mm512_fnmadd_ps(_mm512_cvtepi32_ps(q), step[r], v));
    }
  }
#pragma GCC unroll 8
  for (int r = 0; r < R; ++r) out->start[first + r] = (kBits == 4 ? -15 : -128) * _mm512_reduce_add_epi32(sum[r]);
}

// Vectors of sixteen lanes at a time: two, where the registers hold their sums, for a chain of sums is slow by itself.
template <int kRows>
constexpr int kVectors = kRows <= 8 ? 2 : 1;

// Where the codes of the eights of lanes begin that a step takes; behind the last of n_eights it is taken again, for
// nobody.
template <int V>
struct Eights {
  const uint8_t* codes[2 * V];
  Eights(const uint8_t* first, int64_t bytes, int n_eights) {
#pragma GCC unroll 4
    for (int j = 0; j < 2 * V; ++j) codes[j] = first + std::min(j, n_eights - 1) * bytes;
  }
};

// acc[v][r] = Σ z[r] (2 n - 15) of four bits, Σ z[r] n of eight, over n elements; kBits * n bytes of codes for each
// eight lanes. The instruction wants codes without sign: 2 n, and n + 128.
template <int kBits, int V, int kRows>
__attribute__((always_inline)) inline void Dots(const Eights<V>& in, int n, const Int8Rows<kRows>& x, Fetcher& fetcher,
                                                __m512i (*acc)[kRows]) {
#pragma GCC unroll 2
  for (int v = 0; v < V; ++v) {
#pragma GCC unroll 16
    for (int r = 0; r < kRows; ++r) acc[v][r] = _mm512_set1_epi32(x.start[r]);
  }
#pragma GCC unroll 1
  for (int i = 0; i < n; i += 8) {
    fetcher.Step();
    __m512i first[V], second[V];
#pragma GCC unroll 2
    for (int v = 0; v < V; ++v) {
      const uint8_t *low = in.codes[2 * v] + i * kBits, *high = in.codes[2 * v + 1] + i * kBits;
      if constexpr (kBits == 4) {
        const __m512i codes = LoadPair(low, high);
        const __m512i mask = _mm512_set1_epi8(30);
        first[v] = _mm512_and_si512(_mm512_slli_epi16(codes, 1), mask);
        second[v] = _mm512_and_si512(_mm512_srli_epi16(codes, 3), mask);
      } else {
        const __m512i flip = _mm512_set1_epi8(static_cast<char>(0x80));
        first[v] = _mm512_xor_si512(LoadPair(low, high), flip);
        second[v] = _mm512_xor_si512(LoadPair(low + 32, high + 32), flip);
      }
    }
#pragma GCC unroll 16
    for (int r = 0; r < kRows; ++r) {
      const __m512i z = Broadcast4(x.z[i / 8][r]);
#pragma GCC unroll 2
      for (int v = 0; v < V; ++v) {
        __m512i sum = _mm512_dpbusd_epi32(acc[v][r], first[v], z);
        KVART_PIN(sum);
        acc[v][r] = sum;
      }
    }
#pragma GCC unroll 16
    for (int r = 0; r < kRows; ++r) {
      const __m512i z = Broadcast4(x.z[i / 8][r] + 4);
#pragma GCC unroll 2
      for (int v = 0; v < V; ++v) {
        __m512i sum = _mm512_dpbusd_epi32(acc[v][r], second[v], z);
        KVART_PIN(sum);
        acc[v][r] = sum;
      }
    }
  }
}

// sum in eight lanes (i % 8) of a product of sixteen: the lower eight first.
inline __m256 AddProduct(__m512 a, __m512 b, __m256 sum) {
  sum = _mm256_fmadd_ps(_mm512_castps512_ps256(a), _mm512_castps512_ps256(b), sum);
  return _mm256_fmadd_ps(_mm512_extractf32x8_ps(a, 1), _mm512_extractf32x8_ps(b, 1), sum);
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

// The int8 matrix product shared by all weight formats, for dot instructions over four unsigned and four signed bytes.
// A format says how to unpack 32 columns of eight rows; the two loops below do the rest: one streams the weights past
// few tokens, the other unpacks a tile of 32 rows once for many.
#pragma once

#include <algorithm>

#include "kernels/avx512/avx512_inl.h"

namespace kvart::avx512 {

// Writes rows [row, row + 16) of token i, or fewer where the range ends.
inline void Store16(const MatmulArgs& a, int64_t row, int64_t i, __m512 acc) {
  const int64_t left = a.row_end - row;
  if (left <= 0) return;
  const __mmask16 rows = static_cast<__mmask16>(left >= 16 ? 0xffff : (1 << left) - 1);
  float* out = a.out + i * a.out_stride + (row - a.row_begin);
  if (a.bias != nullptr) acc = _mm512_add_ps(acc, _mm512_maskz_loadu_ps(rows, a.bias + row));
  if (a.accumulate) acc = _mm512_add_ps(_mm512_maskz_loadu_ps(rows, out), acc);
  _mm512_mask_storeu_ps(out, rows, acc);
}

// What a format F gives:
//   kZero        codes are bytes without sign; less this they are the values
//   kScales      scales a block of 32 columns: 1 or 2
//   kMin         whether there is a min term
//   F(args)      then, for row group g and block b:
//   Codes(g, b, w)   the codes, w[4]: byte r * 4 + k of half h of w[i] is row r, column 8 i + 4 h + k
//   Scale(g, b, s), Min(g, b, s)   eight rows' scale and min
//   Prefetch(g, b)

// The sum of a block's activations, or of half s where there are two scales, in all lanes: the integers times a factor;
// and the values.
template <int kScales>
inline __m512i SumTimes(short factor, const ActivationBlock& x, int s) {
  const int16_t* pairs = x.pair_sums + (kScales == 1 ? 4 : 2 * s);
  return _mm512_dpwssd_epi32(_mm512_setzero_si512(), Broadcast4(pairs), _mm512_set1_epi16(factor));
}
template <int kScales>
inline __m512 SumOf(const ActivationBlock& x, int s) {
  if constexpr (kScales == 1) return _mm512_set1_ps(x.sum);
  return _mm512_mul_ps(_mm512_cvtepi32_ps(SumTimes<kScales>(1, x, s)), _mm512_set1_ps(x.scale));
}

// T tokens; the weights are unpacked in registers as they stream by.
template <class F, int T>
void Stream(const MatmulArgs& a, int64_t first) {
  const F format(a);
  const int64_t n_blocks = a.cols / 32;
  constexpr int kPairs = 4 / F::kScales;  // of a scale
  const __m512i pair = _mm512_setr_epi32(0, 0, 0, 0, 0, 0, 0, 0, 1, 1, 1, 1, 1, 1, 1, 1);
  const ActivationBlock* x[T];
  for (int t = 0; t < T; ++t) x[t] = static_cast<const ActivationBlock*>(a.x) + (first + t) * n_blocks;
  for (int64_t row = a.row_begin; row < a.row_end; row += 8) {
    __m256 acc[T];
    for (int t = 0; t < T; ++t) acc[t] = _mm256_setzero_ps();
#pragma GCC unroll 1
    for (int64_t b = 0; b < n_blocks; ++b) {
      __m512i w[4];
      __m256 scales[2], mins[2];
      format.Prefetch(row / 8, b);
      format.Codes(row / 8, b, w);
      for (int s = 0; s < F::kScales; ++s) {
        scales[s] = format.Scale(row / 8, b, s);
        if constexpr (F::kMin) mins[s] = format.Min(row / 8, b, s);
      }
#pragma GCC unroll 4
      for (int t = 0; t < T; ++t) {
        const ActivationBlock& block = x[t][b];
        const __m256 x_scale = _mm256_set1_ps(block.scale);
        const __m512i q = _mm512_castsi256_si512(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(block.q)));
#pragma GCC unroll 2
        for (int s = 0; s < F::kScales; ++s) {
          __m512i dot = _mm512_setzero_si512();
          if constexpr (F::kZero != 0) dot = _mm512_maskz_mov_epi32(0xff, SumTimes<F::kScales>(-F::kZero, block, s));
#pragma GCC unroll 4
          for (int i = s * kPairs; i < (s + 1) * kPairs; ++i) {
            const __m512i at = _mm512_add_epi32(pair, _mm512_set1_epi32(2 * i));
            dot = _mm512_dpbusd_epi32(dot, w[i], _mm512_permutexvar_epi32(at, q));
          }
          acc[t] = _mm256_fmadd_ps(_mm256_cvtepi32_ps(FoldInt(dot)), _mm256_mul_ps(scales[s], x_scale), acc[t]);
          if constexpr (F::kMin) {
            const __m256 sum = _mm512_castps512_ps256(SumOf<F::kScales>(block, s));
            acc[t] = _mm256_fmadd_ps(mins[s], sum, acc[t]);
          }
        }
      }
    }
    for (int t = 0; t < T; ++t) {
      const int64_t left = std::min<int64_t>(8, a.row_end - row);
      MatmulArgs eight = a;
      eight.row_end = row + left;
      Store16(eight, row, first + t, _mm512_castps256_ps512(acc[t]));
    }
  }
}

// A tile: R times sixteen rows, all columns. codes: [block][8][R] vectors of four columns; scales, mins:
// [block][kScales][R].
struct TileView {
  const __m512i* codes;
  const __m512 *scales, *mins;
};

template <int kScales, int kZero, bool kMin, int T, int R>
void Tile(const MatmulArgs& a, const TileView& tile, int64_t row, int64_t first) {
  constexpr int kVectors = 8 / kScales;
  const int64_t n_blocks = a.cols / 32;
  const ActivationBlock* x[T];
  for (int t = 0; t < T; ++t) x[t] = static_cast<const ActivationBlock*>(a.x) + (first + t) * n_blocks;
  __m512 acc[R * T];
#pragma GCC unroll 16
  for (int i = 0; i < R * T; ++i) acc[i] = _mm512_setzero_ps();
#pragma GCC unroll 1
  for (int64_t b = 0; b < n_blocks; ++b) {
#pragma GCC unroll 2
    for (int s = 0; s < kScales; ++s) {
      __m512i dot[R * T];
#pragma GCC unroll 8
      for (int t = 0; t < T; ++t) {
        __m512i start = _mm512_setzero_si512();
        if constexpr (kZero != 0) start = SumTimes<kScales>(-kZero, x[t][b], s);
#pragma GCC unroll 2
        for (int r = 0; r < R; ++r) dot[r * T + t] = start;
      }
#pragma GCC unroll 8
      for (int j = s * kVectors; j < (s + 1) * kVectors; ++j) {
        __m512i w[R];
#pragma GCC unroll 2
        for (int r = 0; r < R; ++r) w[r] = _mm512_load_si512(tile.codes + (b * 8 + j) * R + r);
#pragma GCC unroll 8
        for (int t = 0; t < T; ++t) {
          const __m512i v = Broadcast4(x[t][b].q + 4 * j);
#pragma GCC unroll 2
          for (int r = 0; r < R; ++r) dot[r * T + t] = _mm512_dpbusd_epi32(dot[r * T + t], w[r], v);
        }
      }
#pragma GCC unroll 8
      for (int t = 0; t < T; ++t) {
        const __m512 x_scale = _mm512_set1_ps(x[t][b].scale);
#pragma GCC unroll 2
        for (int r = 0; r < R; ++r) {
          const int64_t at = (b * kScales + s) * R + r;
          __m512& sum = acc[r * T + t];
          sum = _mm512_fmadd_ps(_mm512_cvtepi32_ps(dot[r * T + t]), _mm512_mul_ps(tile.scales[at], x_scale), sum);
          if constexpr (kMin) {
            sum = _mm512_fmadd_ps(tile.mins[at], SumOf<kScales>(x[t][b], s), sum);
          }
        }
      }
    }
  }
#pragma GCC unroll 2
  for (int r = 0; r < R; ++r) {
#pragma GCC unroll 8
    for (int t = 0; t < T; ++t) Store16(a, row + 16 * r, first + t, acc[r * T + t]);
  }
}

constexpr int kTileTokens = 6;  // with two vectors of rows: 12 dots and 12 sums of the 32 registers

template <class F, int R>
void UnpackAndRun(const MatmulArgs& a, int64_t row) {
  const F format(a);
  const int64_t n_blocks = a.cols / 32;
  uint8_t* codes = a.scratch;
  float* scales = reinterpret_cast<float*>(codes + n_blocks * 8 * R * 64);
  float* mins = scales + n_blocks * F::kScales * R * 16;
  for (int g = 0; g < 2 * R; ++g) {  // groups of eight rows: half h of vector r
    const int r = g / 2, h = g % 2;
    const bool there = row + 8 * g < a.row_end;
    for (int64_t b = 0; b < n_blocks; ++b) {
      __m512i w[4] = {};
      if (there) format.Codes(row / 8 + g, b, w);
      uint8_t* to = codes + (b * 8 * R + r) * 64 + 32 * h;
      for (int i = 0; i < 4; ++i, to += 2 * R * 64) {
        _mm256_store_si256(reinterpret_cast<__m256i*>(to), _mm512_castsi512_si256(w[i]));
        _mm256_store_si256(reinterpret_cast<__m256i*>(to + R * 64), _mm512_extracti64x4_epi64(w[i], 1));
      }
      for (int s = 0; s < F::kScales; ++s) {
        const int64_t at = ((b * F::kScales + s) * R + r) * 16 + 8 * h;
        _mm256_store_ps(scales + at, there ? format.Scale(row / 8 + g, b, s) : _mm256_setzero_ps());
        if constexpr (F::kMin) {
          _mm256_store_ps(mins + at, there ? format.Min(row / 8 + g, b, s) : _mm256_setzero_ps());
        }
      }
    }
  }
  const TileView tile = {reinterpret_cast<const __m512i*>(codes), reinterpret_cast<const __m512*>(scales),
                         reinterpret_cast<const __m512*>(mins)};
  int64_t i = 0;
  for (; i + kTileTokens <= a.n; i += kTileTokens) {
    Tile<F::kScales, F::kZero, F::kMin, kTileTokens, R>(a, tile, row, i);
  }
  for (; i + 2 <= a.n; i += 2) Tile<F::kScales, F::kZero, F::kMin, 2, R>(a, tile, row, i);
  for (; i < a.n; ++i) Tile<F::kScales, F::kZero, F::kMin, 1, R>(a, tile, row, i);
}

// Beyond this many tokens a tile is unpacked once for all of them.
constexpr int64_t kStreamTokens = 4;

template <class F>
void Matmul(const MatmulArgs& a) {
  switch (a.n) {
    case 0: return;
    case 1: return Stream<F, 1>(a, 0);
    case 2: return Stream<F, 2>(a, 0);
    case 3: return Stream<F, 3>(a, 0);
    case kStreamTokens: return Stream<F, 4>(a, 0);
    default: break;
  }
  int64_t row = a.row_begin;
  for (; row + 16 < a.row_end; row += 32) UnpackAndRun<F, 2>(a, row);
  if (row < a.row_end) UnpackAndRun<F, 1>(a, row);
}

}  // namespace kvart::avx512

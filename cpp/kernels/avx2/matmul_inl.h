// The int8 matrix product shared by all weight formats: a format says how to unpack 32 columns of eight rows, and the
// two loops below do the rest: one streams the weights past few tokens, the other unpacks a tile once for many.
#pragma once

#include <algorithm>

#include "kernels/avx2/avx2_inl.h"

namespace kvart::avx2 {

// Writes eight rows of token i, or fewer where the matrix or the range ends.
inline void Store8(const MatmulArgs& a, int64_t row, int64_t i, __m256 acc) {
  float* out = a.out + i * a.out_stride + (row - a.row_begin);
  if (row + 8 <= a.row_end) {
    if (a.bias != nullptr) acc = _mm256_add_ps(acc, _mm256_loadu_ps(a.bias + row));
    if (a.accumulate) acc = _mm256_add_ps(_mm256_loadu_ps(out), acc);
    _mm256_storeu_ps(out, acc);
    return;
  }
  alignas(32) float lanes[8];
  _mm256_store_ps(lanes, acc);
  for (int64_t r = row; r < a.row_end; ++r) {
    const float v = a.bias != nullptr ? lanes[r - row] + a.bias[r] : lanes[r - row];
    out[r - row] = a.accumulate ? out[r - row] + v : v;
  }
}

// What a format F gives:
//   kSigned      codes are signed bytes; otherwise they are unsigned, and less kZero they are the values
//   kMaxCode     the greatest magnitude of a value
//   kScales      scales a block of 32 columns: 1 or 2
//   kMin         whether there is a min term
//   F(args)      then, for row group g and block b:
//   Codes(g, b, w)    the eight vectors of codes: __m256i w[8]
//   Scale(g, b, s), Min(g, b, s)   eight rows' scale and min
//   Prefetch(g, b)

// Integer dots of one block with one token's activations, one int32 a row; half s where kScales is 2.
template <class F, int kStride>
__attribute__((always_inline)) inline __m256i Dot(const __m256i* w, const ActivationBlock& x, int s) {
  constexpr int kVectors = 8 / F::kScales;
  constexpr int kTogether = std::min(kVectors, 32767 / (F::kMaxCode * 127 * 2));  // what an int16 lane can add up
  static_assert(F::kZero == 0 || kTogether == kVectors);
  const __m256i one = _mm256_set1_epi16(1);
  __m256i acc = _mm256_setzero_si256(), dot = acc;
  if constexpr (F::kZero != 0) {
    const __m256i sums = Broadcast4(x.pair_sums + (F::kScales == 1 ? 4 : 2 * s));
    acc = _mm256_sub_epi16(acc, _mm256_mullo_epi16(sums, _mm256_set1_epi16(F::kZero)));
  }
#pragma GCC unroll 8
  for (int j = 0; j < kVectors; ++j) {
    const __m256i code = w[(s * kVectors + j) * kStride], v = Broadcast4(x.q + 4 * (s * kVectors + j));
    __m256i product;
    if constexpr (F::kSigned)
      product = _mm256_maddubs_epi16(_mm256_sign_epi8(v, v), _mm256_sign_epi8(code, v));
    else
      product = _mm256_maddubs_epi16(code, v);
    acc = j % kTogether == 0 && F::kZero == 0 ? product : _mm256_add_epi16(acc, product);
    KVART_PIN(acc);
    if (j % kTogether == kTogether - 1) {
      const __m256i sum = _mm256_madd_epi16(acc, one);
      dot = j < kTogether ? sum : _mm256_add_epi32(dot, sum);
      KVART_PIN(dot);
    }
  }
  return dot;
}

// The sum of a block's activations, or of half s where there are two scales, in all lanes.
template <int kScales>
inline __m256 SumOf(const ActivationBlock& x, int s) {
  if constexpr (kScales == 1) return _mm256_broadcast_ss(&x.sum);
  return _mm256_set1_ps(static_cast<float>(x.pair_sums[2 * s] + x.pair_sums[2 * s + 1]) * x.scale);
}

// One block's part of the sums of T tokens, R row groups: acc[R * T].
template <class F, int T, int R>
__attribute__((always_inline)) inline void AddBlock(const __m256i* w, const __m256* scales, const __m256* mins,
                                                    const ActivationBlock* const* x, int64_t b, __m256* acc) {
#pragma GCC unroll 4
  for (int t = 0; t < T; ++t) {
    const ActivationBlock& block = x[t][b];
    const __m256 x_scale = _mm256_broadcast_ss(&block.scale);
#pragma GCC unroll 2
    for (int s = 0; s < F::kScales; ++s) {
#pragma GCC unroll 2
      for (int r = 0; r < R; ++r) {
        __m256& sum = acc[r * T + t];
        const __m256 dot = _mm256_cvtepi32_ps(Dot<F, R>(w + r, block, s));
        sum = _mm256_fmadd_ps(dot, _mm256_mul_ps(scales[s * R + r], x_scale), sum);
        if constexpr (F::kMin) {
          sum = _mm256_fmadd_ps(mins[s * R + r], SumOf<F::kScales>(block, s), sum);
        }
      }
    }
  }
}

// T tokens; the weights are unpacked in registers as they stream by.
template <class F, int T>
void Stream(const MatmulArgs& a, int64_t first) {
  const F format(a);
  const int64_t n_blocks = a.cols / 32;
  const ActivationBlock* x[T];
  for (int t = 0; t < T; ++t) x[t] = static_cast<const ActivationBlock*>(a.x) + (first + t) * n_blocks;
  for (int64_t row = a.row_begin; row < a.row_end; row += 8) {
    __m256 acc[T];
    for (int t = 0; t < T; ++t) acc[t] = _mm256_setzero_ps();
    for (int64_t b = 0; b < n_blocks; ++b) {
      __m256i w[8];
      __m256 scales[2], mins[2];
      format.Prefetch(row / 8, b);
      format.Codes(row / 8, b, w);
      for (int s = 0; s < F::kScales; ++s) {
        scales[s] = format.Scale(row / 8, b, s);
        if constexpr (F::kMin) mins[s] = format.Min(row / 8, b, s);
      }
      AddBlock<F, T, 1>(w, scales, mins, x, b, acc);
    }
    for (int t = 0; t < T; ++t) Store8(a, row, first + t, acc[t]);
  }
}

// T tokens against an unpacked tile of R row groups. codes: [block][8][R] vectors; scales, mins: [block][kScales][R].
template <class F, int T, int R>
void Tile(const MatmulArgs& a, const __m256i* codes, const __m256* scales, const __m256* mins, int64_t row,
          int64_t first) {
  const int64_t n_blocks = a.cols / 32;
  const ActivationBlock* x[T];
  for (int t = 0; t < T; ++t) x[t] = static_cast<const ActivationBlock*>(a.x) + (first + t) * n_blocks;
  __m256 acc[R * T];
  for (int i = 0; i < R * T; ++i) acc[i] = _mm256_setzero_ps();
  for (int64_t b = 0; b < n_blocks; ++b) {
    AddBlock<F, T, R>(codes + b * 8 * R, scales + b * F::kScales * R, mins + b * F::kScales * R, x, b, acc);
  }
  for (int r = 0; r < R; ++r) {
    for (int t = 0; t < T; ++t) Store8(a, row + 8 * r, first + t, acc[r * T + t]);
  }
}

template <class F, int R>
void UnpackAndRun(const MatmulArgs& a, int64_t row) {
  const F format(a);
  const int64_t n_blocks = a.cols / 32;
  __m256i* codes = reinterpret_cast<__m256i*>(a.scratch);
  __m256* scales = reinterpret_cast<__m256*>(codes + n_blocks * 8 * R);
  __m256* mins = scales + n_blocks * F::kScales * R;
  for (int r = 0; r < R; ++r) {
    for (int64_t b = 0; b < n_blocks; ++b) {
      __m256i w[8];
      format.Codes(row / 8 + r, b, w);
      for (int j = 0; j < 8; ++j) _mm256_store_si256(codes + (b * 8 + j) * R + r, w[j]);
      for (int s = 0; s < F::kScales; ++s) {
        const int64_t at = (b * F::kScales + s) * R + r;
        _mm256_store_ps(reinterpret_cast<float*>(scales + at), format.Scale(row / 8 + r, b, s));
        if constexpr (F::kMin) _mm256_store_ps(reinterpret_cast<float*>(mins + at), format.Min(row / 8 + r, b, s));
      }
    }
  }
  int64_t i = 0;
  for (; i + 4 <= a.n; i += 4) Tile<F, 4, R>(a, codes, scales, mins, row, i);
  for (; i < a.n; ++i) Tile<F, 1, R>(a, codes, scales, mins, row, i);
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
  for (; row + 8 < a.row_end; row += 16) UnpackAndRun<F, 2>(a, row);
  if (row < a.row_end) UnpackAndRun<F, 1>(a, row);
}

}  // namespace kvart::avx2

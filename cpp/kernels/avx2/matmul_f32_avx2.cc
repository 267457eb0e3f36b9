// Matrix products with float activations: numbers as they lie there, and codes decoded into a tile of numbers.
#include "kernels/avx2/matmul_inl.h"
#include "kernels/avx2/packed_inl.h"
#include "kernels/tables.h"

namespace kvart::avx2 {
namespace {

struct Half {
  uint16_t bits;
};
struct BFloat {
  uint16_t bits;
};
inline __m256 LoadWeights(const float* w) {
  return _mm256_loadu_ps(w);
}
inline __m256 LoadWeights(const Half* w) {
  return LoadHalf8(w);
}
inline __m256 LoadWeights(const BFloat* w) {
  const __m128i bits = _mm_loadu_si128(reinterpret_cast<const __m128i*>(w));
  return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(bits), 16));
}

// T tokens, R row groups, each (cols, 8) at w + r * group_stride.
template <class W, int T, int R>
void Columns(const MatmulArgs& a, const W* w, int64_t group_stride, int64_t row, int64_t first) {
  const float* x = static_cast<const float*>(a.x) + first * a.cols;
  __m256 acc[R * T];
  for (int i = 0; i < R * T; ++i) acc[i] = _mm256_setzero_ps();
  for (int64_t b = 0; b < a.cols; b += 32) {
    __m256 sum[R * T];
    for (int i = 0; i < R * T; ++i) sum[i] = _mm256_setzero_ps();
    for (int64_t c = b; c < b + 32; ++c) {
#pragma GCC unroll 4
      for (int r = 0; r < R; ++r) {
        const __m256 v = LoadWeights(w + r * group_stride + c * 8);
#pragma GCC unroll 4
        for (int t = 0; t < T; ++t) {
          sum[r * T + t] = _mm256_fmadd_ps(v, _mm256_broadcast_ss(x + t * a.cols + c), sum[r * T + t]);
        }
      }
    }
    for (int i = 0; i < R * T; ++i) acc[i] = _mm256_add_ps(acc[i], sum[i]);
  }
  for (int r = 0; r < R; ++r) {
    for (int t = 0; t < T; ++t) Store8(a, row + 8 * r, first + t, acc[r * T + t]);
  }
}

template <class W, int R>
void Groups(const MatmulArgs& a, const W* w, int64_t group_stride, int64_t row) {
  int64_t i = 0;
  if constexpr (R <= 2) {
    for (; i + 4 <= a.n; i += 4) Columns<W, 4, R>(a, w, group_stride, row, i);
  }
  for (; i < a.n; ++i) Columns<W, 1, R>(a, w, group_stride, row, i);
}

// Weights of type W, (row groups, cols, 8).
template <class W>
void MatmulNumbers(const MatmulArgs& a) {
  const W* w = reinterpret_cast<const W*>(a.weights);
  const int64_t group_stride = a.cols * 8;
  int64_t row = a.row_begin;
  if (a.n < 4) {  // few tokens: several row groups at once, to have enough sums in flight
    for (; row + 24 < a.row_end; row += 32) Groups<W, 4>(a, w + row / 8 * group_stride, group_stride, row);
  }
  for (; row + 8 < a.row_end; row += 16) Groups<W, 2>(a, w + row / 8 * group_stride, group_stride, row);
  if (row < a.row_end) Groups<W, 1>(a, w + row / 8 * group_stride, group_stride, row);
}

// out: (cols, 8), the values of DecodeRow.
template <class F>
void Decode(const F& format, int64_t group, int64_t cols, float* out) {
  for (int64_t b = 0; b < cols / 32; ++b) {
    __m256i w[8];
    __m256 scales[2], mins[2];
    format.Codes(group, b, w);
    for (int s = 0; s < F::kScales; ++s) {
      scales[s] = format.Scale(group, b, s);
      if constexpr (F::kMin) mins[s] = format.Min(group, b, s);
    }
#pragma GCC unroll 8
    for (int j = 0; j < 8; ++j) {
      const int s = j * F::kScales / 8;
#pragma GCC unroll 4
      for (int k = 0; k < 4; ++k, out += 8) {
        // Byte k of every lane, with its sign where codes have one.
        const __m256i top = _mm256_slli_epi32(w[j], 24 - 8 * k);
        const __m256i code = F::kSigned ? _mm256_srai_epi32(top, 24) : _mm256_srli_epi32(top, 24);
        const __m256i centred = _mm256_sub_epi32(code, _mm256_set1_epi32(F::kZero));
        __m256 value = _mm256_mul_ps(scales[s], _mm256_cvtepi32_ps(centred));
        if constexpr (F::kMin) value = _mm256_add_ps(value, mins[s]);
        _mm256_store_ps(out, value);
      }
    }
  }
}

template <DType kType>
void MatmulCodes(const MatmulArgs& a) {
  const Packed<kType> format(a);
  float* tile = reinterpret_cast<float*>(a.scratch);  // (2, cols, 8)
  const int64_t group_stride = a.cols * 8;
  for (int64_t row = a.row_begin; row < a.row_end; row += 16) {
    Decode(format, row / 8, a.cols, tile);
    if (row + 8 < a.row_end) {
      Decode(format, row / 8 + 1, a.cols, tile + group_stride);
      Groups<float, 2>(a, tile, group_stride, row);
    } else {
      Groups<float, 1>(a, tile, group_stride, row);
    }
  }
}

}  // namespace

void matmul_f32_f32_avx2(const MatmulArgs& a) {
  MatmulNumbers<float>(a);
}
void matmul_f16_f32_avx2(const MatmulArgs& a) {
  MatmulNumbers<Half>(a);
}
void matmul_bf16_f32_avx2(const MatmulArgs& a) {
  MatmulNumbers<BFloat>(a);
}
#define KVART_KERNEL(name, type)                       \
  void matmul_##name##_f32_avx2(const MatmulArgs& a) { \
    MatmulCodes<DType::k##type>(a);                    \
  }
KVART_CODED_TYPES(KVART_KERNEL)
#undef KVART_KERNEL

}  // namespace kvart::avx2

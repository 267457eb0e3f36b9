// Matrix products with float activations: F16 interleaved, and any format decoded into a tile of eight rows.
#include "kernels/avx2/matmul_inl.h"
#include "kernels/avx2/rows_avx2.h"
#include "quant/packed.h"

namespace kvart::avx2 {
namespace {

inline __m256 LoadWeights(const float* w) {
  return _mm256_load_ps(w);
}
inline __m256 LoadWeights(const uint16_t* w) {
  return LoadHalf8(w);
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

template <DType kType>
void MatmulDecoded(const MatmulArgs& a) {
  float* tile = reinterpret_cast<float*>(a.scratch);  // (cols, 8)
  float* decoded = tile + a.cols * 8;                 // (cols)
  const uint64_t row_bytes = RowBytes(kType, static_cast<uint64_t>(a.cols));
  for (int64_t row = a.row_begin; row < a.row_end; row += 8) {
    for (int r = 0; r < 8; ++r) {
      if (row + r < a.row_end) {
        DecodeRow(kType, a.weights + static_cast<uint64_t>(row + r) * row_bytes, a.cols, decoded);
        for (int64_t c = 0; c < a.cols; ++c) tile[c * 8 + r] = decoded[c];
      } else {
        for (int64_t c = 0; c < a.cols; ++c) tile[c * 8 + r] = 0;
      }
    }
    Groups<float, 1>(a, tile, 0, row);
  }
}

}  // namespace

void matmul_f16_f32_avx2(const MatmulArgs& a) {
  const uint16_t* w = reinterpret_cast<const uint16_t*>(a.weights);
  const int64_t group_stride = a.cols * 8;
  int64_t row = a.row_begin;
  if (a.n < 4) {  // few tokens: several row groups at once, to have enough sums in flight
    for (; row + 24 < a.row_end; row += 32) Groups<uint16_t, 4>(a, w + row / 8 * group_stride, group_stride, row);
  }
  for (; row + 8 < a.row_end; row += 16) Groups<uint16_t, 2>(a, w + row / 8 * group_stride, group_stride, row);
  if (row < a.row_end) Groups<uint16_t, 1>(a, w + row / 8 * group_stride, group_stride, row);
}

void matmul_f32_f32_avx2(const MatmulArgs& a) {
  MatmulDecoded<DType::kF32>(a);
}
void matmul_bf16_f32_avx2(const MatmulArgs& a) {
  MatmulDecoded<DType::kBF16>(a);
}
void matmul_q4_0_f32_avx2(const MatmulArgs& a) {
  MatmulDecoded<DType::kQ4_0>(a);
}
void matmul_q4_1_f32_avx2(const MatmulArgs& a) {
  MatmulDecoded<DType::kQ4_1>(a);
}
void matmul_q5_0_f32_avx2(const MatmulArgs& a) {
  MatmulDecoded<DType::kQ5_0>(a);
}
void matmul_q5_1_f32_avx2(const MatmulArgs& a) {
  MatmulDecoded<DType::kQ5_1>(a);
}
void matmul_q8_0_f32_avx2(const MatmulArgs& a) {
  MatmulDecoded<DType::kQ8_0>(a);
}
void matmul_q2_k_f32_avx2(const MatmulArgs& a) {
  MatmulDecoded<DType::kQ2_K>(a);
}
void matmul_q3_k_f32_avx2(const MatmulArgs& a) {
  MatmulDecoded<DType::kQ3_K>(a);
}
void matmul_q4_k_f32_avx2(const MatmulArgs& a) {
  MatmulDecoded<DType::kQ4_K>(a);
}
void matmul_q5_k_f32_avx2(const MatmulArgs& a) {
  MatmulDecoded<DType::kQ5_K>(a);
}
void matmul_q6_k_f32_avx2(const MatmulArgs& a) {
  MatmulDecoded<DType::kQ6_K>(a);
}
void matmul_iq4_nl_f32_avx2(const MatmulArgs& a) {
  MatmulDecoded<DType::kIQ4_NL>(a);
}
void matmul_iq4_xs_f32_avx2(const MatmulArgs& a) {
  MatmulDecoded<DType::kIQ4_XS>(a);
}

}  // namespace kvart::avx2

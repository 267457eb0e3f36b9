// Float products of interleaved weights, halves or floats, with float activations. Included by kernels/neon only.
// May depend on: kernels.h.
#pragma once

#include "kernels/neon/matmul_inl.h"

namespace kvart::neon {

constexpr int kGroupsTogether = 2;  // row groups for a single token: independent chains of sums hide the latency of FMA

// Tokens i … i + T - 1 of G row groups. weights: (G, cols, 8).
template <int G, int T, class W>
void TokensF32(const MatmulArgs& a, int64_t row, int64_t i, const W* weights) {
  const float* x = static_cast<const float*>(a.x) + i * a.cols;  // (T, cols)
  F8 acc[G][T];
  KVART_UNROLL
  for (int g = 0; g < G; ++g) {
    KVART_UNROLL
    for (int t = 0; t < T; ++t) acc[g][t] = Zero8();
  }
  for (int64_t block = 0; block < a.cols; block += 32) {
    F8 sum[G][T];
    KVART_UNROLL
    for (int g = 0; g < G; ++g) {
      KVART_UNROLL
      for (int t = 0; t < T; ++t) sum[g][t] = Zero8();
    }
    for (int64_t c = block; c < block + 32; c += 4) {
      float32x4_t v[T];
      KVART_UNROLL
      for (int t = 0; t < T; ++t) v[t] = vld1q_f32(x + t * a.cols + c);
#define KVART_COLUMN(lane)                                              \
  KVART_UNROLL for (int g = 0; g < G; ++g) {                            \
    const F8 w = Load8(weights + (g * a.cols + c + lane) * kGroupRows); \
    KVART_UNROLL for (int t = 0; t < T; ++t) {                          \
      sum[g][t].lo = vfmaq_laneq_f32(sum[g][t].lo, w.lo, v[t], lane);   \
      sum[g][t].hi = vfmaq_laneq_f32(sum[g][t].hi, w.hi, v[t], lane);   \
    }                                                                   \
  }
      KVART_COLUMN(0)
      KVART_COLUMN(1)
      KVART_COLUMN(2)
      KVART_COLUMN(3)
#undef KVART_COLUMN
    }
    KVART_UNROLL
    for (int g = 0; g < G; ++g) {
      KVART_UNROLL
      for (int t = 0; t < T; ++t) {
        acc[g][t] = {vaddq_f32(acc[g][t].lo, sum[g][t].lo), vaddq_f32(acc[g][t].hi, sum[g][t].hi)};
      }
    }
  }
  KVART_UNROLL
  for (int g = 0; g < G; ++g) {
    KVART_UNROLL
    for (int t = 0; t < T; ++t) StoreRows(a, row + g * kGroupRows, i + t, acc[g][t]);
  }
}

// All tokens of one row group.
template <class W>
void AllTokensF32(const MatmulArgs& a, int64_t row, const W* weights) {
  int64_t i = 0;
  for (; i + kTokensTogether <= a.n; i += kTokensTogether) TokensF32<1, kTokensTogether>(a, row, i, weights);
  switch (a.n - i) {
    case 3: TokensF32<1, 3>(a, row, i, weights); break;
    case 2: TokensF32<1, 2>(a, row, i, weights); break;
    case 1: TokensF32<1, 1>(a, row, i, weights); break;
    default: break;
  }
}

}  // namespace kvart::neon

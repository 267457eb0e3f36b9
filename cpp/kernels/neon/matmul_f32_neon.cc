// Matrix products with float activations: numbers as they lie there, and codes decoded into a tile of numbers.
#include "kernels/neon/kernels_neon.h"
#include "kernels/neon/packed_inl.h"

namespace kvart::neon {
namespace {

struct BFloat {
  uint16_t bits;
};
inline F8 Load8(const BFloat* p) {
  const uint16x8_t bits = vreinterpretq_u16_u8(vld1q_u8(reinterpret_cast<const uint8_t*>(p)));
  return {vreinterpretq_f32_u32(vshlq_n_u32(vmovl_u16(vget_low_u16(bits)), 16)),
          vreinterpretq_f32_u32(vshlq_n_u32(vmovl_high_u16(bits), 16))};
}

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

// Weights of type W, (row groups, cols, 8).
template <class W>
void MatmulNumbers(const MatmulArgs& a) {
  const W* weights = reinterpret_cast<const W*>(a.weights);
  int64_t row = a.row_begin;
  if (a.n == 1) {
    constexpr int64_t kRows = kGroupsTogether * kGroupRows;
    for (; row + kRows <= a.row_end; row += kRows) TokensF32<kGroupsTogether, 1>(a, row, 0, weights + row * a.cols);
  }
  for (; row < a.row_end; row += kGroupRows) AllTokensF32(a, row, weights + row * a.cols);
}

// out: (cols, 8), the values of DecodeRow.
template <class Format>
void Decode(const Format& format, int64_t cols, float* out) {
  for (int64_t b = 0; b < cols / 32; ++b) {
    Block8<Format::kScales, Format::kHasMin> block;
    format.Read(b, block);
    for (int c = 0; c < 32; ++c, out += kGroupRows) {
      const int s = c * Format::kScales / 32;
      const int32x4_t left = vdupq_n_s32(24 - 8 * (c % 4));
      const auto value = [&](int8x16_t codes, float32x4_t scale, float32x4_t min) {
        const int32x4_t code = vshrq_n_s32(vshlq_s32(vreinterpretq_s32_s8(codes), left), 24);  // byte c % 4
        const float32x4_t v = vmulq_f32(scale, vcvtq_f32_s32(vsubq_s32(code, vdupq_n_s32(Format::kZero))));
        return Format::kHasMin ? vaddq_f32(v, min) : v;
      };
      const F8 &scale = block.scale[s], &min = block.min[Format::kHasMin ? s : 0];
      const int8x16_t* codes = block.w + c / 4 * 2;
      Store8(out, {value(codes[0], scale.lo, min.lo), value(codes[1], scale.hi, min.hi)});
    }
  }
}

template <class Format>
void MatmulCodes(const MatmulArgs& a) {
  float* tile = reinterpret_cast<float*>(a.scratch);  // (two groups, cols, 8)
  int64_t row = a.row_begin;
  if (a.n == 1) {
    for (; row + 2 * kGroupRows <= a.row_end; row += 2 * kGroupRows) {
      Decode(Format(a, row), a.cols, tile);
      Decode(Format(a, row + kGroupRows), a.cols, tile + a.cols * kGroupRows);
      TokensF32<2, 1>(a, row, 0, tile);
    }
  }
  for (; row < a.row_end; row += kGroupRows) {
    Decode(Format(a, row), a.cols, tile);
    AllTokensF32(a, row, tile);
  }
}

}  // namespace

void matmul_f32_f32_neon(const MatmulArgs& a) {
  MatmulNumbers<float>(a);
}
void matmul_f16_f32_neon(const MatmulArgs& a) {
  MatmulNumbers<uint16_t>(a);
}
void matmul_bf16_f32_neon(const MatmulArgs& a) {
  MatmulNumbers<BFloat>(a);
}
#define KVART_KERNEL(name, type)                       \
  void matmul_##name##_f32_neon(const MatmulArgs& a) { \
    MatmulCodes<Packed<DType::k##type>>(a);            \
  }
KVART_CODED_TYPES(KVART_KERNEL)
#undef KVART_KERNEL

}  // namespace kvart::neon

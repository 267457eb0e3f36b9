// How the NEON matrix products end, and the int8 product of eight rows with one to four tokens. Included by
// kernels/neon only. May depend on: kernels.h.
#pragma once

#include <algorithm>
#include <cstring>

#include "kernels/neon/neon_inl.h"

namespace kvart::neon {
namespace {

constexpr int kGroupRows = 8;  // a lane is a row
constexpr int64_t kTokensTogether = 4;

// Adds bias and what is there already; writes rows row … row + 7, cut at row_end, of token i.
inline void StoreRows(const MatmulArgs& a, int64_t row, int64_t i, F8 acc) {
  float* out = a.out + i * a.out_stride + row - a.row_begin;
  if (a.row_end - row >= kGroupRows) {
    if (a.bias != nullptr)
      acc = {vaddq_f32(acc.lo, vld1q_f32(a.bias + row)), vaddq_f32(acc.hi, vld1q_f32(a.bias + row + 4))};
    if (a.accumulate) acc = {vaddq_f32(vld1q_f32(out), acc.lo), vaddq_f32(vld1q_f32(out + 4), acc.hi)};
    Store8(out, acc);
    return;
  }
  float lanes[kGroupRows];
  Store8(lanes, acc);
  for (int64_t r = 0; r < a.row_end - row; ++r) {
    if (a.bias != nullptr) lanes[r] += a.bias[row + r];
    out[r] = a.accumulate ? out[r] + lanes[r] : lanes[r];
  }
}

// 32 columns of eight rows as codes, which less the source's kZero are the values' codes. w[2 j] holds rows 0-3,
// w[2 j + 1] rows 4-7; byte 4 r + k is column 4 j + k.
template <int kScales, bool kHasMin>
struct Block8 {
  int8x16_t w[16];
  F8 scale[kScales];
  F8 min[kHasMin ? kScales : 1];
};

// A row group unpacked into the scratch, to be read again for every few tokens.
template <int kScaleCount, bool kMin>
struct Unpacked {
  static constexpr int kScales = kScaleCount, kZero = 0;
  static constexpr bool kHasMin = kMin;
  int8_t* codes;  // (blocks, 256), in the order of Block8
  float* scales;  // (blocks, kScales, 8)
  float* mins;    // (blocks, kScales, 8)

  static Unpacked In(uint8_t* scratch, int64_t n_blocks) {
    float* scales = reinterpret_cast<float*>(scratch);
    float* mins = scales + n_blocks * kScales * kGroupRows;
    return {reinterpret_cast<int8_t*>(mins + n_blocks * kScales * kGroupRows), scales, mins};
  }
  void Read(int64_t b, Block8<kScales, kHasMin>& block) const {
    KVART_UNROLL
    for (int v = 0; v < 16; ++v) block.w[v] = vld1q_s8(codes + b * 256 + v * 16);
    KVART_UNROLL
    for (int s = 0; s < kScales; ++s) block.scale[s] = Load8(scales + (b * kScales + s) * kGroupRows);
    if constexpr (kHasMin) {
      KVART_UNROLL
      for (int s = 0; s < kScales; ++s) block.min[s] = Load8(mins + (b * kScales + s) * kGroupRows);
    }
  }
  void Write(int64_t b, const Block8<kScales, kHasMin>& block, int8_t zero) const {
    KVART_UNROLL
    for (int v = 0; v < 16; ++v) vst1q_s8(codes + b * 256 + v * 16, vsubq_s8(block.w[v], vdupq_n_s8(zero)));
    KVART_UNROLL
    for (int s = 0; s < kScales; ++s) Store8(scales + (b * kScales + s) * kGroupRows, block.scale[s]);
    if constexpr (kHasMin) {
      KVART_UNROLL
      for (int s = 0; s < kScales; ++s) Store8(mins + (b * kScales + s) * kGroupRows, block.min[s]);
    }
  }
};

// The sum of a block's activations, or of half s where there are two scales: of the codes; of the values.
template <int kScales>
inline int32_t CodeSum(const ActivationBlock& x, int s) {
  const int16_t* pairs = x.pair_sums + (kScales == 1 ? 4 : 2 * s);
  return pairs[0] + pairs[1];
}
template <int kScales>
inline float SumOf(const ActivationBlock& x, int s) {
  return kScales == 1 ? x.sum : static_cast<float>(CodeSum<kScales>(x, s)) * x.scale;
}

// Tokens i … i + T - 1 of one row group. Source: Unpacked, or a packed format that unpacks as it reads.
template <int T, class Source>
void TokensI8(const MatmulArgs& a, int64_t row, int64_t i, const Source& source) {
  constexpr int kScales = Source::kScales, kHalves = 2 / kScales;  // halves of 16 columns under one scale
  const int64_t n_blocks = a.cols / 32;
  const ActivationBlock* x = static_cast<const ActivationBlock*>(a.x) + i * n_blocks;  // (T, n_blocks)
  F8 acc[T];
  KVART_UNROLL
  for (F8& lanes : acc) lanes = Zero8();
  for (int64_t b = 0; b < n_blocks; ++b, ++x) {
    Block8<kScales, Source::kHasMin> block;
    source.Read(b, block);
    KVART_UNROLL
    for (int s = 0; s < kScales; ++s) {
      int32x4_t lo[T], hi[T];
      KVART_UNROLL
      for (int t = 0; t < T; ++t) {
        const int32_t start = Source::kZero != 0 ? -Source::kZero * CodeSum<kScales>(x[t * n_blocks], s) : 0;
        lo[t] = hi[t] = vdupq_n_s32(start);
      }
      KVART_UNROLL
      for (int h = s * kHalves; h < (s + 1) * kHalves; ++h) {
        const int8x16_t* w = block.w + 8 * h;
        KVART_UNROLL
        for (int t = 0; t < T; ++t) {
          const int8x16_t q = vld1q_s8(x[t * n_blocks].q + 16 * h);
          lo[t] = vdotq_laneq_s32(lo[t], w[0], q, 0);
          hi[t] = vdotq_laneq_s32(hi[t], w[1], q, 0);
          lo[t] = vdotq_laneq_s32(lo[t], w[2], q, 1);
          hi[t] = vdotq_laneq_s32(hi[t], w[3], q, 1);
          lo[t] = vdotq_laneq_s32(lo[t], w[4], q, 2);
          hi[t] = vdotq_laneq_s32(hi[t], w[5], q, 2);
          lo[t] = vdotq_laneq_s32(lo[t], w[6], q, 3);
          hi[t] = vdotq_laneq_s32(hi[t], w[7], q, 3);
        }
      }
      KVART_UNROLL
      for (int t = 0; t < T; ++t) {
        const ActivationBlock& xt = x[t * n_blocks];
        acc[t].lo = vfmaq_f32(acc[t].lo, vcvtq_f32_s32(lo[t]), vmulq_n_f32(block.scale[s].lo, xt.scale));
        acc[t].hi = vfmaq_f32(acc[t].hi, vcvtq_f32_s32(hi[t]), vmulq_n_f32(block.scale[s].hi, xt.scale));
        if constexpr (Source::kHasMin) {
          const float sum = SumOf<kScales>(xt, s);
          acc[t].lo = vfmaq_n_f32(acc[t].lo, block.min[s].lo, sum);
          acc[t].hi = vfmaq_n_f32(acc[t].hi, block.min[s].hi, sum);
        }
      }
    }
  }
  KVART_UNROLL
  for (int t = 0; t < T; ++t) StoreRows(a, row, i + t, acc[t]);
}

// All tokens of one row group.
template <class Source>
void AllTokensI8(const MatmulArgs& a, int64_t row, const Source& source) {
  int64_t i = 0;
  for (; i + kTokensTogether <= a.n; i += kTokensTogether) TokensI8<kTokensTogether>(a, row, i, source);
  switch (a.n - i) {
    case 3: TokensI8<3>(a, row, i, source); break;
    case 2: TokensI8<2>(a, row, i, source); break;
    case 1: TokensI8<1>(a, row, i, source); break;
    default: break;
  }
}

}  // namespace
}  // namespace kvart::neon

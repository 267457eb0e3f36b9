// Weights of eight rows interleaved (quant/packed.h), unpacked as they are read: one template for all formats with
// codes. Included by kernels/neon only.
#pragma once

#include "kernels/neon/matmul_inl.h"
#include "quant/packed.h"

namespace kvart::neon {
namespace {

inline F8 Times(const F8& a, const F8& b) {
  return {vmulq_f32(a.lo, b.lo), vmulq_f32(a.hi, b.hi)};
}
inline F8 Widen(uint8x8_t bytes) {
  const uint16x8_t wide = vmovl_u8(bytes);
  return {vcvtq_f32_u32(vmovl_u16(vget_low_u16(wide))), vcvtq_f32_u32(vmovl_high_u16(wide))};
}
inline F8 Widen(int8x8_t bytes) {
  const int16x8_t wide = vmovl_s8(bytes);
  return {vcvtq_f32_s32(vmovl_s16(vget_low_s16(wide))), vcvtq_f32_s32(vmovl_high_s16(wide))};
}
inline F8 WidenBytes(const uint8_t* p) {
  return Widen(vld1_u8(p));
}
inline F8 WidenBytes(const int8_t* p) {
  return Widen(vld1_s8(p));
}
// `base`, with the bits `mask` << at from `bits`, where they lie at `from`.
inline uint8x16_t WithBits(uint8x16_t base, uint8x16_t bits, int mask, int from, int at) {
  const uint8x16_t moved = vshlq_u8(bits, vdupq_n_s8(static_cast<int8_t>(at - from)));
  return vbslq_u8(vdupq_n_u8(static_cast<uint8_t>(mask << at)), moved, base);
}

// The codes of 32 columns as they are stored: w[16], in the order of Block8.
template <class Group>
__attribute__((always_inline)) inline void ReadCodes(const Group& in, uint8x16_t* w) {
  KVART_UNROLL
  for (int side = 0; side < 2; ++side) {  // rows 0-3, rows 4-7
    if constexpr (HasQ4<Group>) {
      KVART_UNROLL
      for (int j = 0; j < 4; ++j) {
        const uint8x16_t v = vld1q_u8(in.q4[j] + 16 * side);
        w[2 * j + side] = vandq_u8(v, vdupq_n_u8(15));
        w[2 * (j + 4) + side] = vshrq_n_u8(v, 4);
      }
    }
    if constexpr (HasQ2<Group>) {
      KVART_UNROLL
      for (int j = 0; j < 8; ++j) {
        const uint8x16_t plane = vld1q_u8(in.q2[j % 2] + 16 * side);
        uint8x16_t& code = w[2 * j + side];
        code = WithBits(HasQ4<Group> ? code : vdupq_n_u8(0), plane, 3, j / 2 * 2, kQ2At<Group>);
      }
    }
    if constexpr (HasQ1<Group>) {
      const uint8x16_t plane = vld1q_u8(in.q1 + 16 * side);
      KVART_UNROLL
      for (int j = 0; j < 8; ++j) w[2 * j + side] = WithBits(w[2 * j + side], plane, 1, j, kQ1At<Group>);
    }
  }
}

// One row group of a matrix, as a source of Block8.
template <DType kType>
struct Packed {
  using Block = BlockX8<kType>;
  static constexpr uint64_t kGroups = kColumnsX8<Block> / 32;
  static constexpr int kScales = 32 / ScaleColumns(kType), kZero = ZeroCode(kType);
  static constexpr bool kHasMin = HasMin(kType);

  const Block* blocks;
  Packed(const MatmulArgs& a, int64_t row)
      : blocks(reinterpret_cast<const Block*>(a.weights) + row / kGroupRows * (a.cols / kColumnsX8<Block>)) {}

  void Read(uint64_t b, Block8<kScales, kHasMin>& out) const {
    if constexpr (kGroups == 1) {
      ReadSigned(blocks[b], out);
      out.scale[0] = Load8(blocks[b].d);
      if constexpr (kHasMin) out.min[0] = Load8(blocks[b].m);
    } else {
      const Block& block = blocks[b / kGroups];
      const auto& group = block.groups[b % kGroups];
      ReadSigned(group, out);
      const F8 d = Load8(block.d);
      KVART_UNROLL
      for (int s = 0; s < kScales; ++s) {
        if constexpr (kType == DType::kQ2_K)
          out.scale[s] = Times(d, Widen(vand_u8(vld1_u8(group.scales[s]), vdup_n_u8(15))));
        else
          out.scale[s] = Times(d, WidenBytes(group.scales[s]));
        if constexpr (kHasMin) {
          const F8 dmin = Load8(block.dmin), minus = {vnegq_f32(dmin.lo), vnegq_f32(dmin.hi)};
          if constexpr (kType == DType::kQ2_K)
            out.min[s] = Times(minus, Widen(vshr_n_u8(vld1_u8(group.scales[s]), 4)));
          else
            out.min[s] = Times(minus, WidenBytes(group.mins[s]));
        }
      }
    }
  }

 private:
  template <class Group>
  static void ReadSigned(const Group& in, Block8<kScales, kHasMin>& out) {
    if constexpr (HasQ8<Group>) {
      KVART_UNROLL
      for (int v = 0; v < 16; ++v) out.w[v] = vld1q_s8(in.q8[v / 2] + v % 2 * 16);
    } else {
      uint8x16_t codes[16];
      ReadCodes(in, codes);
      KVART_UNROLL
      for (int v = 0; v < 16; ++v) {
        out.w[v] = HasLevels(kType) ? vqtbl1q_s8(vld1q_s8(kIq4Values), codes[v]) : vreinterpretq_s8_u8(codes[v]);
      }
    }
  }
};

}  // namespace
}  // namespace kvart::neon

// Int8 products with interleaved weights. One token unpacks as it reads; more tokens share a row group unpacked once.
// Codes come out of the unpacking centred, so that signed dot products need no correction.
#include "kernels/neon/kernels_neon.h"
#include "kernels/neon/matmul_inl.h"
#include "quant/quant.h"

namespace kvart::neon {
namespace {

// The sign bits above a nibble are already in `high`: puts the low or high nibbles of `codes` below them.
inline int8x16_t WithLowNibbles(int8x16_t high, uint8x16_t codes) {
  return vbslq_s8(vdupq_n_u8(0x0f), vreinterpretq_s8_u8(codes), high);
}
inline int8x16_t WithHighNibbles(int8x16_t high, uint8x16_t codes) {
  return vsriq_n_s8(high, vreinterpretq_s8_u8(codes), 4);
}

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

struct Q8_0 {
  static constexpr int kScales = 1;
  static constexpr bool kHasMin = false;
  static constexpr int64_t kColumns = 32;
  using Packed = BlockQ8_0X8;
  const Packed* group;

  void Read(int64_t b, Block8<1, false>& out) const {
    KVART_UNROLL
    for (int v = 0; v < 16; ++v) out.w[v] = vld1q_s8(group[b].qs + 16 * v);
    out.scale[0] = Load8(group[b].d);
  }
};

struct Q5_0 {
  static constexpr int kScales = 1;
  static constexpr bool kHasMin = false;
  static constexpr int64_t kColumns = 32;
  using Packed = BlockQ5_0X8;
  const Packed* group;

  void Read(int64_t b, Block8<1, false>& out) const {
    const Packed& in = group[b];
    KVART_UNROLL
    for (int side = 0; side < 2; ++side) {  // rows 0-3, rows 4-7
      const uint8x16_t fifth = vld1q_u8(in.qh + 16 * side);
      KVART_UNROLL
      for (int j = 0; j < 4; ++j) {
        const uint8x16_t codes = vld1q_u8(in.qs + 32 * j + 16 * side);
        out.w[2 * j + side] = WithLowNibbles(Sign(fifth, j), codes);
        out.w[2 * (j + 4) + side] = WithHighNibbles(Sign(fifth, j + 4), codes);
      }
    }
    out.scale[0] = Load8(in.d);
  }
  // q - 16 is the nibble with a fifth bit, and the nibble - 16 without.
  static int8x16_t Sign(uint8x16_t fifth, int j) {
    const uint8x16_t bit = vandq_u8(fifth, vdupq_n_u8(static_cast<uint8_t>(1 << j)));
    return vreinterpretq_s8_u8(vandq_u8(vceqzq_u8(bit), vdupq_n_u8(0xf0)));
  }
};

struct Q4_K {
  static constexpr int kScales = 1;
  static constexpr bool kHasMin = true;
  static constexpr int64_t kColumns = kSuperBlock;
  using Packed = BlockQ4_KX8;
  const Packed* group;

  void Read(int64_t b, Block8<1, true>& out) const {
    const Packed& in = group[b / 8];
    const int64_t g = b % 8;
    KVART_UNROLL
    for (int v = 0; v < 8; ++v) {
      const uint8x16_t codes = vld1q_u8(in.qs[g] + 16 * v);
      out.w[v] = vreinterpretq_s8_u8(vandq_u8(codes, vdupq_n_u8(0x0f)));
      out.w[v + 8] = vreinterpretq_s8_u8(vshrq_n_u8(codes, 4));
    }
    const F8 d = Load8(in.d), dmin = Load8(in.dmin);
    out.scale[0] = Times(d, Widen(vld1_u8(in.scales[g])));
    out.min[0] = Times({vnegq_f32(dmin.lo), vnegq_f32(dmin.hi)}, Widen(vld1_u8(in.mins[g])));
  }
};

struct Q6_K {
  static constexpr int kScales = 2;
  static constexpr bool kHasMin = false;
  static constexpr int64_t kColumns = kSuperBlock;
  using Packed = BlockQ6_KX8;
  const Packed* group;

  void Read(int64_t b, Block8<2, false>& out) const {
    const Packed& in = group[b / 8];
    const int64_t g = b % 8;
    KVART_UNROLL
    for (int side = 0; side < 2; ++side) {
      // With its upper bit turned over, a pair of bits is a signed number: at the top of a byte, shifted down by two,
      // it is the upper half of q - 32. The bits that come along below it give way to the nibble.
      const uint8x16_t turn = vdupq_n_u8(0xaa);
      const int8x16_t top_lo = vreinterpretq_s8_u8(veorq_u8(vld1q_u8(in.qh[g] + 16 * side), turn));
      const int8x16_t top_hi = vreinterpretq_s8_u8(veorq_u8(vld1q_u8(in.qh[g] + 32 + 16 * side), turn));
      KVART_UNROLL
      for (int j = 0; j < 4; ++j) {
        const uint8x16_t codes = vld1q_u8(in.ql[g] + 32 * j + 16 * side);
        const int8x16_t up = vdupq_n_s8(static_cast<int8_t>(6 - 2 * j));
        out.w[2 * j + side] = WithLowNibbles(vshrq_n_s8(vshlq_s8(top_lo, up), 2), codes);
        out.w[2 * (j + 4) + side] = WithHighNibbles(vshrq_n_s8(vshlq_s8(top_hi, up), 2), codes);
      }
    }
    const F8 d = Load8(in.d);
    KVART_UNROLL
    for (int s = 0; s < 2; ++s) out.scale[s] = Times(d, Widen(vld1_s8(in.scales[2 * g + s])));
  }
};

template <class Format>
void Matmul(const MatmulArgs& a) {
  const int64_t n_blocks = a.cols / 32, packed_blocks = a.cols / Format::kColumns;
  const auto unpacked = Unpacked<Format::kScales, Format::kHasMin>::In(a.scratch, n_blocks);
  for (int64_t row = a.row_begin; row < a.row_end; row += kGroupRows) {
    const Format format{reinterpret_cast<const typename Format::Packed*>(a.weights) + row / kGroupRows * packed_blocks};
    if (a.n == 1) {
      TokensI8<1>(a, row, 0, format);
      continue;
    }
    Block8<Format::kScales, Format::kHasMin> block;
    for (int64_t b = 0; b < n_blocks; ++b) {
      format.Read(b, block);
      unpacked.Write(b, block);
    }
    AllTokensI8(a, row, unpacked);
  }
}

}  // namespace

void matmul_q5_0_i8_neon(const MatmulArgs& args) {
  Matmul<Q5_0>(args);
}
void matmul_q8_0_i8_neon(const MatmulArgs& args) {
  Matmul<Q8_0>(args);
}
void matmul_q4_k_i8_neon(const MatmulArgs& args) {
  Matmul<Q4_K>(args);
}
void matmul_q6_k_i8_neon(const MatmulArgs& args) {
  Matmul<Q6_K>(args);
}

}  // namespace kvart::neon

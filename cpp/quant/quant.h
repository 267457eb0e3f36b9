// The block formats of GGUF weights: layouts, scalar decode and encode (the truth all kernels are tested against), and
// an integer view of any format for the int8 kernels. May depend on: base. Next for the token: kernels/ multiplies
// these rows with activations; gguf/gguf.h says where a row lies.
#pragma once

#include <bit>
#include <cstdint>

#include "base/status.h"
#include "quant/dtype.h"

namespace kvart {

static_assert(std::endian::native == std::endian::little, "GGUF blocks are read in place as little-endian structs");

// ---- Layouts. A half is kept as its 16 bits (HalfToFloat). Copy a block out with memcpy where a row may be unaligned.
// "Low nibbles first": byte i of 16 holds column i in its low and column i + 16 in its high half.

constexpr int kSuperBlock = 256;  // columns in a block of the K formats and of IQ4_XS: eight groups of 32
constexpr int kGroup = 32;        // columns in a block of the other formats; the unit of UnpackCodes

struct BlockQ4_0 {  // d * (q - 8)
  uint16_t d;
  uint8_t qs[16];  // low nibbles first
};
struct BlockQ4_1 {  // d * q + m
  uint16_t d;
  uint16_t m;
  uint8_t qs[16];  // low nibbles first
};
struct BlockQ5_0 {  // d * (q - 16)
  uint16_t d;
  uint8_t qh[4];   // little-endian word: bit i is the fifth bit of column i
  uint8_t qs[16];  // low nibbles first
};
struct BlockQ5_1 {  // d * q + m
  uint16_t d;
  uint16_t m;
  uint8_t qh[4];
  uint8_t qs[16];
};
struct BlockQ8_0 {  // d * q
  uint16_t d;
  int8_t qs[32];
};
struct BlockQ2_K {     // d * scale * q - dmin * min, per 16 columns
  uint8_t scales[16];  // low nibble scale, high nibble min
  uint8_t qs[64];      // group g: bits 2 * (g % 4) of qs[32 * (g / 4) + i]
  uint16_t d;
  uint16_t dmin;
};
struct BlockQ3_K {     // d * (scale - 32) * (q - 4), per 16 columns
  uint8_t hmask[32];   // group g: bit g of hmask[i] is the third bit of q
  uint8_t qs[64];      // as in Q2_K
  uint8_t scales[12];  // 16 scales of 6 bits: low four bits in bytes 0-7, high two in bytes 8-11
  uint16_t d;
};
struct BlockQ4_K {  // d * scale * q - dmin * min, per 32 columns
  uint16_t d;
  uint16_t dmin;
  uint8_t scales[12];  // 8 scales and 8 mins of 6 bits, see ScaleMinK4
  uint8_t qs[128];     // group g: nibble g % 2 of qs[32 * (g / 2) + i]
};
struct BlockQ5_K {  // as Q4_K, with a fifth bit
  uint16_t d;
  uint16_t dmin;
  uint8_t scales[12];
  uint8_t qh[32];  // group g: bit g of qh[i]
  uint8_t qs[128];
};
struct BlockQ6_K {  // d * scale * (q - 32), per 16 columns
  uint8_t ql[128];  // group g: nibble (g % 4) / 2 of ql[64 * (g / 4) + 32 * (g % 2) + i]
  uint8_t qh[64];   // group g: bits 2 * (g % 4) of qh[32 * (g / 4) + i]
  int8_t scales[16];
  uint16_t d;
};
struct BlockIQ4_NL {  // d * kIq4Values[q]
  uint16_t d;
  uint8_t qs[16];  // low nibbles first
};
struct BlockIQ4_XS {  // d * (scale - 32) * kIq4Values[q], per 32 columns
  uint16_t d;
  uint16_t scales_h;    // group g: bits 2g are the high two of its scale
  uint8_t scales_l[4];  // group g: nibble g % 2 of scales_l[g / 2]
  uint8_t qs[128];      // group g: qs[16 * g ...], low nibbles first
};

static_assert(sizeof(BlockQ4_0) == 18 && sizeof(BlockQ4_1) == 20 && sizeof(BlockQ5_0) == 22 && sizeof(BlockQ5_1) == 24);
static_assert(sizeof(BlockQ8_0) == 34 && sizeof(BlockQ2_K) == 84 && sizeof(BlockQ3_K) == 110);
static_assert(sizeof(BlockQ4_K) == 144 && sizeof(BlockQ5_K) == 176 && sizeof(BlockQ6_K) == 210);
static_assert(sizeof(BlockIQ4_NL) == 18 && sizeof(BlockIQ4_XS) == 136);

// The 16 levels of IQ4_NL and IQ4_XS, part of the format.
inline constexpr int8_t kIq4Values[16] = {-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113};

// Scale and min (6 bits each) of 32-column group g of Q4_K and Q5_K, from their 12 packed bytes.
struct ScaleMin {
  uint8_t scale;
  uint8_t min;
};
inline ScaleMin ScaleMinK4(const uint8_t* scales, int g) {
  if (g < 4) return {static_cast<uint8_t>(scales[g] & 63), static_cast<uint8_t>(scales[g + 4] & 63)};
  return {static_cast<uint8_t>((scales[g + 4] & 15) | ((scales[g - 4] >> 2) & 0x30)),
          static_cast<uint8_t>((scales[g + 4] >> 4) | ((scales[g] >> 2) & 0x30))};
}

// Scale k of the 16 of a Q3_K block, from its 12 packed bytes: -32 … 31.
inline int8_t ScaleQ3K(const uint8_t* scales, int k) {
  const int low = k < 8 ? scales[k] & 15 : scales[k - 8] >> 4;
  const int high = (scales[8 + k % 4] >> (2 * (k / 4))) & 3;
  return static_cast<int8_t>((low | (high << 4)) - 32);
}

// Scale of 32-column group g of IQ4_XS: -32 … 31.
inline int8_t ScaleIq4Xs(const BlockIQ4_XS& b, int g) {
  const int low = (b.scales_l[g / 2] >> (4 * (g % 2))) & 15;
  const int high = (b.scales_h >> (2 * g)) & 3;
  return static_cast<int8_t>((low | (high << 4)) - 32);
}

// ---- Traits of the integer view.

// Whether values have a term apart from scale * code: UnpackCodes gives mins that are not all zero.
constexpr bool HasMin(DType t) {
  return t == DType::kQ4_1 || t == DType::kQ5_1 || t == DType::kQ2_K || t == DType::kQ4_K || t == DType::kQ5_K;
}
// Columns that share a scale: 16 or 32; 0 for float types, which have no codes.
constexpr int ScaleColumns(DType t) {
  if (t == DType::kF32 || t == DType::kF16 || t == DType::kBF16) return 0;
  return t == DType::kQ2_K || t == DType::kQ3_K || t == DType::kQ6_K ? 16 : 32;
}
// The largest |code| that UnpackCodes gives: with it a kernel can prove that its integer sums do not overflow.
constexpr int MaxCode(DType t) {
  switch (t) {
    case DType::kQ4_0: return 8;
    case DType::kQ4_1:
    case DType::kQ4_K: return 15;
    case DType::kQ5_0: return 16;
    case DType::kQ5_1:
    case DType::kQ5_K: return 31;
    case DType::kQ2_K: return 3;
    case DType::kQ3_K: return 4;
    case DType::kQ6_K: return 32;
    case DType::kQ8_0:
    case DType::kIQ4_NL:
    case DType::kIQ4_XS: return 127;
    case DType::kF32:
    case DType::kF16:
    case DType::kBF16: return 0;
  }
  return 0;
}

// ---- Rows. All of these are pure functions; src and row may be unaligned and hold any bytes (scales may be infinite
// or NaN).

// src: RowBytes(type, n) bytes → dst: (n,). n is a multiple of block_values. Bit-equal to the `gguf` package.
void DecodeRow(DType type, const uint8_t* src, int64_t n, float* dst);

// src: (n,) → dst: RowBytes(type, n) bytes, byte-equal to the `gguf` package. F32, F16, BF16, Q4_0, Q4_1, Q5_0, Q5_1
// and Q8_0; Unsupported for the others. InvalidArgument when n is not whole blocks, and for NaN and infinity, except in
// the float types, which keep them.
Status EncodeRow(DType type, const float* src, int64_t n, uint8_t* dst);

// The integer view of a quantized type, 32 columns at a time whatever the block size:
//   value = scales[h] * codes[i] + mins[h], h = i / 16.
// Codes are centred where the format is (Q4_0: q - 8, Q5_0: q - 16, Q6_K: q - 32, Q3_K: q - 4, Q8_0: q, IQ4_*: the
// level), raw where it has a min. scales are d * scale, exact in float; mins are what is to be added: +m or -dmin *
// min, zero without HasMin. Where a scale covers 32 columns both halves hold it. Bit-equal to DecodeRow, save for
// Q8_0's code -128, which becomes -127: no encoder writes it, and kernels may then negate codes in int8. row: start of
// the row; block32_begin: first group of 32 columns. codes: (n_blocks32, 32); scales, mins: (n_blocks32, 2). Not for
// float types.
void UnpackCodes(DType type, const uint8_t* row, int64_t block32_begin, int64_t n_blocks32, int8_t* codes,
                 float* scales, float* mins);

}  // namespace kvart

// Weight matrices as kernels like to stream them: eight rows interleaved, so that a vector lane is a row and every load
// is used whole. May depend on: base. Next for the token: kernels/ reads the packed rows.
#pragma once

#include <cstddef>
#include <cstdint>

#include "base/status.h"
#include "quant/quant.h"

namespace kvart {

enum class Packing {
  kRows,  // as in the GGUF file
  kX8,    // eight rows interleaved; the last group is filled up with zeros
};

// In all X8 blocks, byte r * 4 + k of a 32-byte vector j is row r, column 4 j + k of a group of 32 columns. Nibbles:
// vector j = 0 … 3 in the low halves (columns 0 … 15), j = 4 … 7 in the high ones. Fifth and sixth bits follow the same
// vectors.
struct BlockQ5_0X8 {
  uint16_t d[8];
  uint8_t qh[32];   // bit j of byte i: fifth bit of vector j, byte i
  uint8_t qs[128];  // [4][32]
};
struct BlockQ8_0X8 {
  uint16_t d[8];
  int8_t qs[256];  // [8][32]
};
struct BlockQ4_KX8 {  // 256 columns
  uint16_t d[8], dmin[8];
  uint8_t scales[8][8];  // [group of 32 columns][row]
  uint8_t mins[8][8];
  uint8_t qs[8][128];  // [group][4][32]
};
struct BlockQ6_KX8 {  // 256 columns
  uint16_t d[8];
  int8_t scales[16][8];  // [16 columns][row]
  uint8_t ql[8][128];    // [group][4][32]
  uint8_t qh[8][64];     // [group][2][32]: bits 2 j of byte i of half h: vector 4 h + j
};
static_assert(sizeof(BlockQ5_0X8) == 8 * sizeof(BlockQ5_0) && sizeof(BlockQ8_0X8) == 8 * sizeof(BlockQ8_0));
static_assert(sizeof(BlockQ4_KX8) == 8 * sizeof(BlockQ4_K) + 32 && sizeof(BlockQ6_KX8) == 8 * sizeof(BlockQ6_K));
// F16 in X8: (row groups, cols, 8) halves.

// Whether kX8 is defined for this type. kRows is for all.
bool CanPackX8(DType type);
// Bytes of the packed matrix.
uint64_t PackedBytes(DType type, Packing packing, int64_t rows, int64_t cols);
// Packs the row groups [group_begin, group_end) of a matrix; src is the whole matrix in GGUF rows, dst the whole packed
// one. Groups are independent of each other: threads may share the work.
void PackX8(DType type, const uint8_t* src, int64_t rows, int64_t cols, int64_t group_begin, int64_t group_end,
            uint8_t* dst);

}  // namespace kvart

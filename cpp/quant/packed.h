// Weight matrices as kernels like to stream them: eight rows interleaved, so that a vector lane is a row and every load
// is used whole. May depend on: base. Next for the token: kernels/ reads the packed rows.
#pragma once

#include <cstddef>
#include <cstdint>

#include "quant/quant.h"

namespace kvart {

enum class Packing {
  kRows,  // as in the GGUF file
  kX8,    // eight rows interleaved; the last group of rows is filled up with zeros
};

// What is subtracted from a code as it is stored to give the one of UnpackCodes. Formats with a table of levels store
// the index into it, and Q8_0 the code itself.
constexpr int ZeroCode(DType t) {
  return HasMin(t) || MaxCode(t) == 127 ? 0 : MaxCode(t);
}
constexpr bool HasLevels(DType t) {
  return t == DType::kIQ4_NL || t == DType::kIQ4_XS;
}

// A block of eight rows: what eight blocks of the file hold, in the order in which it is used.
// Codes are in planes of q1, q2, q4 or q8: of so many bits; q4 has the lowest bits of a code, then come q2's, then
// q1's. 32 columns of a code are eight vectors of 32 bytes: byte r * 4 + k of vector j is row r, column 4 j + k.
//   q8: vector j itself
//   q4: vector j in the low halves of bytes of q4[j], vector j + 4 in the high ones
//   q2: vector j in bits 2 (j / 2) of bytes of q2[j % 2]
//   q1: vector j in bit j of bytes
// Scales and mins of six bits are bytes here, which makes a row of a block two or four bytes longer than in the file.
template <DType>
struct BlockX8;

template <>
struct BlockX8<DType::kQ4_0> {
  uint16_t d[8];
  uint8_t q4[4][32];
};
template <>
struct BlockX8<DType::kQ4_1> {
  uint16_t d[8], m[8];
  uint8_t q4[4][32];
};
template <>
struct BlockX8<DType::kQ5_0> {
  uint16_t d[8];
  uint8_t q1[32], q4[4][32];
};
template <>
struct BlockX8<DType::kQ5_1> {
  uint16_t d[8], m[8];
  uint8_t q1[32], q4[4][32];
};
template <>
struct BlockX8<DType::kQ8_0> {
  uint16_t d[8];
  int8_t q8[8][32];  // -128 is stored as -127, see UnpackCodes
};
template <>
struct BlockX8<DType::kIQ4_NL> : BlockX8<DType::kQ4_0> {};
template <>
struct BlockX8<DType::kQ2_K> {
  uint16_t d[8], dmin[8];
  struct Group {
    uint8_t scales[2][8];  // of 16 columns: scale in the low half of a byte, min in the high one
    uint8_t q2[2][32];
  } groups[8];  // of 32 columns, here and below
};
template <>
struct BlockX8<DType::kQ3_K> {
  uint16_t d[8];
  struct Group {
    int8_t scales[2][8];
    uint8_t q1[32], q2[2][32];
  } groups[8];
};
template <>
struct BlockX8<DType::kQ4_K> {
  uint16_t d[8], dmin[8];
  struct Group {
    uint8_t scales[1][8], mins[1][8];
    uint8_t q4[4][32];
  } groups[8];
};
template <>
struct BlockX8<DType::kQ5_K> {
  uint16_t d[8], dmin[8];
  struct Group {
    uint8_t scales[1][8], mins[1][8];
    uint8_t q1[32], q4[4][32];
  } groups[8];
};
template <>
struct BlockX8<DType::kQ6_K> {
  uint16_t d[8];
  struct Group {
    int8_t scales[2][8];
    uint8_t q2[2][32], q4[4][32];
  } groups[8];
};
template <>
struct BlockX8<DType::kIQ4_XS> {
  uint16_t d[8];
  struct Group {
    int8_t scales[1][8];
    uint8_t q4[4][32];
  } groups[8];
};

// What a block, or a group of one with several, has; columns of a block; where the bits of q2 and q1 go in a code.
template <class T>
concept HasGroups = requires(T t) {
  t.groups;
};
template <class T>
concept HasQ8 = requires(T t) {
  t.q8;
};
template <class T>
concept HasQ4 = requires(T t) {
  t.q4;
};
template <class T>
concept HasQ2 = requires(T t) {
  t.q2;
};
template <class T>
concept HasQ1 = requires(T t) {
  t.q1;
};
template <class T>
constexpr int kColumnsX8 = HasGroups<T> ? kSuperBlock : kGroup;
template <class T>
constexpr int kQ2At = HasQ4<T> ? 4 : 0;
template <class T>
constexpr int kQ1At = kQ2At<T> + (HasQ2<T> ? 2 : 0);

// Float types in X8: (row groups, cols, 8) of the file's numbers.

// Bytes of the packed matrix.
uint64_t PackedBytes(DType type, Packing packing, int64_t rows, int64_t cols);
// Packs the row groups [group_begin, group_end) of a matrix; src is the whole matrix in GGUF rows, dst the whole packed
// one, both aligned to 8 bytes. Groups are independent of each other: threads may share the work.
void PackX8(DType type, const uint8_t* src, int64_t rows, int64_t cols, int64_t group_begin, int64_t group_end,
            uint8_t* dst);

}  // namespace kvart

// Inside quant only: how each format yields one group of 32 columns as codes, scales and mins.
// May depend on: quant.h. Next stop: quant.cc strings the groups into rows.
#pragma once

#include <cstdint>
#include <cstring>

#include "quant/quant.h"

namespace kvart::quant_internal {

// The columns 32 * group ... of one block, which starts at a possibly unaligned address.
// codes: (32,); scales: (2,); mins: (2,).
using UnpackGroup = void (*)(const uint8_t* block, int group, int8_t* codes, float* scales, float* mins);

void UnpackQ4_0(const uint8_t* block, int group, int8_t* codes, float* scales, float* mins);
void UnpackQ4_1(const uint8_t* block, int group, int8_t* codes, float* scales, float* mins);
void UnpackQ5_0(const uint8_t* block, int group, int8_t* codes, float* scales, float* mins);
void UnpackQ5_1(const uint8_t* block, int group, int8_t* codes, float* scales, float* mins);
void UnpackQ8_0(const uint8_t* block, int group, int8_t* codes, float* scales, float* mins);  // keeps the code -128
void UnpackQ2_K(const uint8_t* block, int group, int8_t* codes, float* scales, float* mins);
void UnpackQ3_K(const uint8_t* block, int group, int8_t* codes, float* scales, float* mins);
void UnpackQ4_K(const uint8_t* block, int group, int8_t* codes, float* scales, float* mins);
void UnpackQ5_K(const uint8_t* block, int group, int8_t* codes, float* scales, float* mins);
void UnpackQ6_K(const uint8_t* block, int group, int8_t* codes, float* scales, float* mins);
void UnpackIQ4_NL(const uint8_t* block, int group, int8_t* codes, float* scales, float* mins);
void UnpackIQ4_XS(const uint8_t* block, int group, int8_t* codes, float* scales, float* mins);

template <class Block>
Block LoadBlock(const uint8_t* src) {
  Block block;
  std::memcpy(&block, src, sizeof(block));
  return block;
}

// One scale and one min for all 32 columns.
inline void SetBoth(float scale, float min, float* scales, float* mins) {
  scales[0] = scales[1] = scale;
  mins[0] = mins[1] = min;
}

// Column i of 16 bytes whose low nibbles hold columns 0-15 and high nibbles columns 16-31.
inline int NibbleOf(const uint8_t* qs, int i) {
  return (qs[i % 16] >> (i < 16 ? 0 : 4)) & 15;
}

}  // namespace kvart::quant_internal

// The formats with blocks of 32 columns and one scale: Q4_0, Q4_1, Q5_0, Q5_1, Q8_0. May depend on: quant.h.
// Next stop: quant.cc, which calls these group by group.
#include "quant/half.h"
#include "quant/unpack.h"

namespace kvart::quant_internal {
namespace {

int FifthBit(const uint8_t* qh, int i) {
  return ((qh[i / 8] >> (i % 8)) & 1) << 4;
}

}  // namespace

void UnpackQ4_0(const uint8_t* block, int /*group*/, int8_t* codes, float* scales, float* mins) {
  const auto b = LoadBlock<BlockQ4_0>(block);
  for (int i = 0; i < kGroup; ++i) codes[i] = static_cast<int8_t>(NibbleOf(b.qs, i) - 8);
  SetBoth(HalfToFloat(b.d), 0.0f, scales, mins);
}

void UnpackQ4_1(const uint8_t* block, int /*group*/, int8_t* codes, float* scales, float* mins) {
  const auto b = LoadBlock<BlockQ4_1>(block);
  for (int i = 0; i < kGroup; ++i) codes[i] = static_cast<int8_t>(NibbleOf(b.qs, i));
  SetBoth(HalfToFloat(b.d), HalfToFloat(b.m), scales, mins);
}

void UnpackQ5_0(const uint8_t* block, int /*group*/, int8_t* codes, float* scales, float* mins) {
  const auto b = LoadBlock<BlockQ5_0>(block);
  for (int i = 0; i < kGroup; ++i) codes[i] = static_cast<int8_t>((NibbleOf(b.qs, i) | FifthBit(b.qh, i)) - 16);
  SetBoth(HalfToFloat(b.d), 0.0f, scales, mins);
}

void UnpackQ5_1(const uint8_t* block, int /*group*/, int8_t* codes, float* scales, float* mins) {
  const auto b = LoadBlock<BlockQ5_1>(block);
  for (int i = 0; i < kGroup; ++i) codes[i] = static_cast<int8_t>(NibbleOf(b.qs, i) | FifthBit(b.qh, i));
  SetBoth(HalfToFloat(b.d), HalfToFloat(b.m), scales, mins);
}

void UnpackQ8_0(const uint8_t* block, int /*group*/, int8_t* codes, float* scales, float* mins) {
  const auto b = LoadBlock<BlockQ8_0>(block);
  std::memcpy(codes, b.qs, sizeof(b.qs));
  SetBoth(HalfToFloat(b.d), 0.0f, scales, mins);
}

}  // namespace kvart::quant_internal

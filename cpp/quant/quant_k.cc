// The formats with blocks of 256 columns and two levels of scales: Q2_K to Q6_K. May depend on: quant.h.
// Next stop: quant.cc, which calls these group by group.
#include "quant/half.h"
#include "quant/unpack.h"

namespace kvart::quant_internal {
namespace {

void SetScaleMinK4(uint16_t d, uint16_t dmin, const uint8_t* packed, int group, float* scales, float* mins) {
  const ScaleMin s = ScaleMinK4(packed, group);
  SetBoth(HalfToFloat(d) * static_cast<float>(s.scale), -(HalfToFloat(dmin) * static_cast<float>(s.min)), scales, mins);
}

}  // namespace

void UnpackQ2_K(const uint8_t* block, int group, int8_t* codes, float* scales, float* mins) {
  const auto b = LoadBlock<BlockQ2_K>(block);
  const uint8_t* qs = b.qs + 32 * (group / 4);
  for (int i = 0; i < kGroup; ++i) codes[i] = static_cast<int8_t>((qs[i] >> (2 * (group % 4))) & 3);
  for (int h = 0; h < 2; ++h) {
    const int packed = b.scales[2 * group + h];
    scales[h] = HalfToFloat(b.d) * static_cast<float>(packed & 15);
    mins[h] = -(HalfToFloat(b.dmin) * static_cast<float>(packed >> 4));
  }
}

void UnpackQ3_K(const uint8_t* block, int group, int8_t* codes, float* scales, float* mins) {
  const auto b = LoadBlock<BlockQ3_K>(block);
  const uint8_t* qs = b.qs + 32 * (group / 4);
  for (int i = 0; i < kGroup; ++i) {
    const int low = (qs[i] >> (2 * (group % 4))) & 3;
    const int high = (b.hmask[i] >> group) & 1;
    codes[i] = static_cast<int8_t>((low | (high << 2)) - 4);
  }
  for (int h = 0; h < 2; ++h) {
    scales[h] = HalfToFloat(b.d) * static_cast<float>(ScaleQ3K(b.scales, 2 * group + h));
    mins[h] = 0.0f;
  }
}

void UnpackQ4_K(const uint8_t* block, int group, int8_t* codes, float* scales, float* mins) {
  const auto b = LoadBlock<BlockQ4_K>(block);
  const uint8_t* qs = b.qs + 32 * (group / 2);
  for (int i = 0; i < kGroup; ++i) codes[i] = static_cast<int8_t>((qs[i] >> (4 * (group % 2))) & 15);
  SetScaleMinK4(b.d, b.dmin, b.scales, group, scales, mins);
}

void UnpackQ5_K(const uint8_t* block, int group, int8_t* codes, float* scales, float* mins) {
  const auto b = LoadBlock<BlockQ5_K>(block);
  const uint8_t* qs = b.qs + 32 * (group / 2);
  for (int i = 0; i < kGroup; ++i) {
    const int low = (qs[i] >> (4 * (group % 2))) & 15;
    const int high = (b.qh[i] >> group) & 1;
    codes[i] = static_cast<int8_t>(low | (high << 4));
  }
  SetScaleMinK4(b.d, b.dmin, b.scales, group, scales, mins);
}

void UnpackQ6_K(const uint8_t* block, int group, int8_t* codes, float* scales, float* mins) {
  const auto b = LoadBlock<BlockQ6_K>(block);
  const int in_half = group % 4;
  const uint8_t* ql = b.ql + 64 * (group / 4) + 32 * (in_half % 2);
  const uint8_t* qh = b.qh + 32 * (group / 4);
  for (int i = 0; i < kGroup; ++i) {
    const int low = (ql[i] >> (4 * (in_half / 2))) & 15;
    const int high = (qh[i] >> (2 * in_half)) & 3;
    codes[i] = static_cast<int8_t>((low | (high << 4)) - 32);
  }
  for (int h = 0; h < 2; ++h) {
    scales[h] = HalfToFloat(b.d) * static_cast<float>(b.scales[2 * group + h]);
    mins[h] = 0.0f;
  }
}

}  // namespace kvart::quant_internal

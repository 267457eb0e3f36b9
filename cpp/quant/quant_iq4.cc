// The formats with 16 uneven levels: IQ4_NL (blocks of 32) and IQ4_XS (blocks of 256). May depend on: quant.h.
// Next stop: quant.cc, which calls these group by group.
#include "quant/half.h"
#include "quant/unpack.h"

namespace kvart::quant_internal {

void UnpackIQ4_NL(const uint8_t* block, int /*group*/, int8_t* codes, float* scales, float* mins) {
  const auto b = LoadBlock<BlockIQ4_NL>(block);
  for (int i = 0; i < kGroup; ++i) codes[i] = kIq4Values[NibbleOf(b.qs, i)];
  SetBoth(HalfToFloat(b.d), 0.0f, scales, mins);
}

void UnpackIQ4_XS(const uint8_t* block, int group, int8_t* codes, float* scales, float* mins) {
  const auto b = LoadBlock<BlockIQ4_XS>(block);
  for (int i = 0; i < kGroup; ++i) codes[i] = kIq4Values[NibbleOf(b.qs + 16 * group, i)];
  SetBoth(HalfToFloat(b.d) * static_cast<float>(ScaleIq4Xs(b, group)), 0.0f, scales, mins);
}

}  // namespace kvart::quant_internal

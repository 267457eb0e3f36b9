// The formats with blocks of 256 columns and two levels of scales: a search over groups, then over their scales.
// Next stop: quantize.cc, which goes block by block.
#include "quant/encode_k.h"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "quant/half.h"
#include "quant/scale_search.h"

namespace kvart::quant_internal {
namespace {

constexpr int kMaxGroups = 16;
constexpr int kRounds = 2;  // of: integer scales for the halves, halves for the integer scales

struct Layout {
  int n_groups;
  Codes codes;
  Codes scales;  // the groups' integer scales, and mins where codes.min says there are any
  int size() const { return kSuperBlock / n_groups; }
  bool has_min() const { return codes.min != MinKind::kNone; }
};

Layout LayoutOf(DType type) {
  switch (type) {
    case DType::kQ2_K: return {16, {0, 3, MinKind::kNegative}, {0, 15, MinKind::kNone}};
    case DType::kQ3_K: return {16, {-4, 3, MinKind::kNone}, {-32, 31, MinKind::kNone}};
    case DType::kQ4_K: return {8, {0, 15, MinKind::kNegative}, {0, 63, MinKind::kNone}};
    case DType::kQ5_K: return {8, {0, 31, MinKind::kNegative}, {0, 63, MinKind::kNone}};
    default: return {16, {-32, 31, MinKind::kNone}, {-128, 127, MinKind::kNone}};
  }
}

// A whole super-block in integers.
struct SuperBlock {
  uint16_t d = 0, dmin = 0;
  int scale[kMaxGroups] = {}, min[kMaxGroups] = {};
  float error = 0;

  float ScaleOf(int g) const { return HalfToFloat(d) * static_cast<float>(scale[g]); }
  float MinOf(int g) const { return -(HalfToFloat(dmin) * static_cast<float>(min[g])); }
};

int Clamp(float v, const Codes& codes) {
  if (!(v > static_cast<float>(codes.low))) return codes.low;
  return v < static_cast<float>(codes.high) ? static_cast<int>(std::lround(v)) : codes.high;
}

// One super-block: x, w: (256,).
class Encoder {
 public:
  Encoder(const Layout& layout, const float* x, const float* w) : l_(layout), x_(x), w_(w) {}

  SuperBlock Run() const {
    float scales[kMaxGroups] = {}, mins[kMaxGroups] = {}, weights[kMaxGroups] = {};
    for (int g = 0; g < l_.n_groups; ++g) {
      const Fit fit = FindScale(l_.codes, l_.size(), X(g), W(g));
      scales[g] = fit.scale;
      mins[g] = -fit.min;
      for (int i = 0; i < l_.size(); ++i) weights[g] += W(g)[i];
    }
    SuperBlock best;
    best.d = FloatToHalf(FindScale(l_.scales, kMaxGroups, scales, weights).scale);
    if (l_.has_min()) best.dmin = FloatToHalf(FindScale(l_.scales, kMaxGroups, mins, weights).scale);
    best = ChooseScales(best, scales, mins);
    for (int round = 0; round < kRounds; ++round) {
      SuperBlock next = best;
      FitHalves(&next);
      for (int g = 0; g < l_.n_groups; ++g) {
        scales[g] = best.ScaleOf(g);
        mins[g] = -best.MinOf(g);
      }
      next = ChooseScales(next, scales, mins);
      if (!(next.error < best.error)) break;
      best = next;
    }
    return best;
  }

  void RoundAll(const SuperBlock& b, int8_t* q) const {
    for (int g = 0; g < l_.n_groups; ++g) {
      Round(l_.codes, l_.size(), X(g), b.ScaleOf(g), b.MinOf(g), q + g * l_.size());
    }
  }

 private:
  const float* X(int g) const { return x_ + g * l_.size(); }
  const float* W(int g) const { return w_ + g * l_.size(); }

  // For given halves: each group's integers near the wanted ones with the smallest error.
  SuperBlock ChooseScales(SuperBlock b, const float* scales, const float* mins) const {
    const float d = HalfToFloat(b.d), dmin = HalfToFloat(b.dmin);
    b.error = 0;
    for (int g = 0; g < l_.n_groups; ++g) {
      const int scale = d == 0.0f ? 0 : Clamp(scales[g] / d, l_.scales);
      const int min = dmin == 0.0f ? 0 : Clamp(mins[g] / dmin, l_.scales);
      float best = -1.0f;
      const int around_min = l_.has_min() ? 1 : 0;
      for (int s = scale - 1; s <= scale + 1; ++s) {
        if (s < l_.scales.low || s > l_.scales.high) continue;
        for (int m = min - around_min; m <= min + around_min; ++m) {
          if (m < 0 || m > l_.scales.high) continue;
          const float error =
              ErrorOf(l_.codes, l_.size(), X(g), W(g), d * static_cast<float>(s), -(dmin * static_cast<float>(m)));
          if (best >= 0.0f && !(error < best)) continue;
          best = error;
          b.scale[g] = s;
          b.min[g] = m;
        }
      }
      b.error += best;
    }
    return b;
  }

  // For given integers everywhere: the halves by least squares over the whole block.
  void FitHalves(SuperBlock* b) const {
    int8_t q[kSuperBlock];
    RoundAll(*b, q);
    double aa = 0, ab = 0, bb = 0, xa = 0, xb = 0;  // a = scale * q, b = -min
    for (int g = 0; g < l_.n_groups; ++g) {
      const double minus_min = -b->min[g];
      for (int i = 0; i < l_.size(); ++i) {
        const double w = W(g)[i], x = X(g)[i], a = b->scale[g] * q[g * l_.size() + i];
        aa += w * a * a;
        ab += w * a * minus_min;
        bb += w * minus_min * minus_min;
        xa += w * x * a;
        xb += w * x * minus_min;
      }
    }
    const double determinant = aa * bb - ab * ab;
    if (determinant > 1e-6 * aa * bb) {
      b->d = FloatToHalf(static_cast<float>(std::max(0.0, (bb * xa - ab * xb) / determinant)));
      b->dmin = FloatToHalf(static_cast<float>(std::max(0.0, (aa * xb - ab * xa) / determinant)));
    } else if (aa > 0) {
      b->d = FloatToHalf(static_cast<float>((xa - HalfToFloat(b->dmin) * ab) / aa));
    }
  }

  const Layout l_;
  const float* x_;
  const float* w_;
};

void PackScaleMinK4(const SuperBlock& b, uint8_t* scales) {
  for (int g = 0; g < 4; ++g) {
    scales[g] = static_cast<uint8_t>(b.scale[g] | ((b.scale[g + 4] >> 4) << 6));
    scales[g + 4] = static_cast<uint8_t>(b.min[g] | ((b.min[g + 4] >> 4) << 6));
    scales[g + 8] = static_cast<uint8_t>((b.scale[g + 4] & 15) | ((b.min[g + 4] & 15) << 4));
  }
}

// Two bits a column: group g of 32 columns at bits 2 * (g % 4) of qs[32 * (g / 4) + i].
void PackPairs(const uint8_t* q, uint8_t* qs) {
  for (int i = 0; i < 64; ++i) {
    const uint8_t* column = q + 128 * (i / 32) + i % 32;
    qs[i] = static_cast<uint8_t>(column[0] | (column[32] << 2) | (column[64] << 4) | (column[96] << 6));
  }
}

// Four bits a column: group g at nibble g % 2 of qs[32 * (g / 2) + i].
void PackHalves(const uint8_t* q, uint8_t* qs) {
  for (int i = 0; i < 128; ++i) {
    const uint8_t* column = q + 64 * (i / 32) + i % 32;
    qs[i] = static_cast<uint8_t>(column[0] | (column[32] << 4));
  }
}

// One bit a column: group g at bit g of bits[i].
void PackBits(const uint8_t* q, uint8_t* bits) {
  for (int i = 0; i < 32; ++i) {
    int byte = 0;
    for (int g = 0; g < 8; ++g) byte |= q[32 * g + i] << g;
    bits[i] = static_cast<uint8_t>(byte);
  }
}

// Bits [shift, shift + count) of every integer.
void Bits(const uint8_t* q, int shift, int count, uint8_t* out) {
  for (int i = 0; i < kSuperBlock; ++i) out[i] = static_cast<uint8_t>((q[i] >> shift) & ((1 << count) - 1));
}

void Pack(const SuperBlock& s, const uint8_t* q, BlockQ2_K* b) {
  b->d = s.d;
  b->dmin = s.dmin;
  for (int g = 0; g < 16; ++g) b->scales[g] = static_cast<uint8_t>(s.scale[g] | (s.min[g] << 4));
  PackPairs(q, b->qs);
}

void Pack(const SuperBlock& s, const uint8_t* q, BlockQ3_K* b) {
  uint8_t part[kSuperBlock];
  b->d = s.d;
  std::memset(b->scales, 0, sizeof(b->scales));
  for (int g = 0; g < 16; ++g) {
    const int scale = s.scale[g] + 32;
    b->scales[g % 8] = static_cast<uint8_t>(b->scales[g % 8] | ((scale & 15) << (4 * (g / 8))));
    b->scales[8 + g % 4] = static_cast<uint8_t>(b->scales[8 + g % 4] | ((scale >> 4) << (2 * (g / 4))));
  }
  Bits(q, 0, 2, part);
  PackPairs(part, b->qs);
  Bits(q, 2, 1, part);
  PackBits(part, b->hmask);
}

void Pack(const SuperBlock& s, const uint8_t* q, BlockQ4_K* b) {
  b->d = s.d;
  b->dmin = s.dmin;
  PackScaleMinK4(s, b->scales);
  PackHalves(q, b->qs);
}

void Pack(const SuperBlock& s, const uint8_t* q, BlockQ5_K* b) {
  uint8_t part[kSuperBlock];
  b->d = s.d;
  b->dmin = s.dmin;
  PackScaleMinK4(s, b->scales);
  Bits(q, 0, 4, part);
  PackHalves(part, b->qs);
  Bits(q, 4, 1, part);
  PackBits(part, b->qh);
}

void Pack(const SuperBlock& s, const uint8_t* q, BlockQ6_K* b) {
  uint8_t part[kSuperBlock];
  b->d = s.d;
  for (int g = 0; g < 16; ++g) b->scales[g] = static_cast<int8_t>(s.scale[g]);
  Bits(q, 4, 2, part);
  PackPairs(part, b->qh);
  for (int i = 0; i < 128; ++i) {  // group g of 32: nibble (g % 4) / 2 of ql[64 * (g / 4) + 32 * (g % 2) + i]
    const uint8_t* column = q + 128 * (i / 64) + i % 64;
    b->ql[i] = static_cast<uint8_t>((column[0] & 15) | ((column[64] & 15) << 4));
  }
}

template <class Block>
void Encode(DType type, const float* x, const float* w, uint8_t* out) {
  const Layout layout = LayoutOf(type);
  const Encoder encoder(layout, x, w);
  const SuperBlock s = encoder.Run();
  int8_t codes[kSuperBlock];
  encoder.RoundAll(s, codes);
  uint8_t q[kSuperBlock];
  for (int i = 0; i < kSuperBlock; ++i) q[i] = static_cast<uint8_t>(codes[i] - layout.codes.low);
  Block block;
  Pack(s, q, &block);
  std::memcpy(out, &block, sizeof(block));
}

}  // namespace

void EncodeSuperBlock(DType type, const float* x, const float* w, uint8_t* block) {
  switch (type) {
    case DType::kQ2_K: return Encode<BlockQ2_K>(type, x, w, block);
    case DType::kQ3_K: return Encode<BlockQ3_K>(type, x, w, block);
    case DType::kQ4_K: return Encode<BlockQ4_K>(type, x, w, block);
    case DType::kQ5_K: return Encode<BlockQ5_K>(type, x, w, block);
    case DType::kQ6_K: return Encode<BlockQ6_K>(type, x, w, block);
    default: return;
  }
}

}  // namespace kvart::quant_internal

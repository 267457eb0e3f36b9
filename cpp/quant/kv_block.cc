#include "quant/kv_block.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <vector>

#include "quant/half.h"

namespace kvart {
namespace {

// The smallest half that is not below x >= 0, so that the range it spans covers x.
uint16_t HalfNotBelow(float x) {
  const uint16_t h = FloatToHalf(x);
  return HalfToFloat(h) < x ? static_cast<uint16_t>(h + 1) : h;
}

// The code of x, as the 4 or 8 bits that are stored.
uint8_t Quantize(float x, float centre, float scale, bool four_bits) {
  const float most = four_bits ? 15.0f : 127.0f, least = four_bits ? 0.0f : -127.0f;
  float n = four_bits ? 8.0f : 0.0f;
  if (scale > 0) {
    n = (x - centre) / scale;
    if (four_bits) n = n + 7.5f;
    n = n > least ? n : least;  // NaN becomes the least
    n = n < most ? n : most;
    n = (n + 12582912.0f) - 12582912.0f;  // to nearest, ties to even
  }
  return static_cast<uint8_t>(static_cast<int8_t>(n));
}

void PutHalf(uint8_t* to, uint16_t h) { std::memcpy(to, &h, sizeof h); }
float GetHalf(const uint8_t* from) {
  uint16_t h;
  std::memcpy(&h, from, sizeof h);
  return HalfToFloat(h);
}

}  // namespace

KvBlock::KvBlock(const KvFormat& format, bool keys, int tokens, int head_dim)
    : format_(format), keys_(keys), tokens_(tokens), head_dim_(head_dim) {
  const int along = format.axis == KvAxis::kChannel ? tokens : head_dim;
  group_ = format.group == 0 || format.group > along ? along : format.group;
  n_groups_ = (along + group_ - 1) / group_;
  n_per_group_ = format.axis == KvAxis::kChannel ? head_dim : tokens;
  const size_t values = static_cast<size_t>(tokens) * static_cast<size_t>(head_dim);
  if (format.is_float()) {
    params_ = values * (format.code == KvCode::kF32 ? 4 : 2);
    params_bytes_ = 0;
    return;
  }
  params_ = format.code == KvCode::kInt4 ? values / 2 : values;
  params_bytes_ = static_cast<size_t>(n_groups_) * static_cast<size_t>(n_per_group_) * 4;
  if (format.norm) params_bytes_ += static_cast<size_t>(tokens) * 2;
}

// Dot instructions add four neighbouring bytes: four channels of a token for keys, four tokens of a channel for values; a 32-byte vector
// is eight of the other. Four-bit codes put the next four beside them, in the high halves.
KvBlock::At KvBlock::CodeAt(int t, int c) const {
  const int lane = keys_ ? t : c, along = keys_ ? c : t;        // lanes of a vector; what the dot adds up
  const int n_along = keys_ ? head_dim_ : tokens_;
  const int per_vector = format_.code == KvCode::kInt4 ? 8 : 4;
  const size_t vector = static_cast<size_t>(lane / 8 * (n_along / per_vector) + along / per_vector);
  return {vector * 32 + static_cast<size_t>(lane % 8 * 4 + along % 4), per_vector == 8 && along % 8 >= 4 ? 4 : 0};
}

size_t KvBlock::FloatAt(int t, int c) const {
  return static_cast<size_t>(keys_ ? (t / 8 * head_dim_ + c) * 8 + t % 8 : t * head_dim_ + c);
}

void KvBlock::Encode(const uint16_t* x, int first, uint8_t* out) const {
  if (format_.is_float()) {
    for (int t = 0; t < tokens_; ++t) {
      for (int c = 0; c < head_dim_; ++c) {
        const uint16_t half = x[t * head_dim_ + c];
        const float full = HalfToFloat(half);
        if (format_.code == KvCode::kF16) std::memcpy(out + FloatAt(t, c) * 2, &half, 2);
        else std::memcpy(out + FloatAt(t, c) * 4, &full, 4);
      }
    }
    return;
  }
  const bool four_bits = format_.code == KvCode::kInt4;
  std::memset(out, 0, bytes());
  std::vector<float> values(static_cast<size_t>(tokens_) * static_cast<size_t>(head_dim_));
  for (size_t i = 0; i < values.size(); ++i) values[i] = HalfToFloat(x[i]);

  if (format_.norm) {
    uint8_t* norms = out + bytes() - static_cast<size_t>(tokens_) * 2;
    for (int t = first; t < tokens_; ++t) {
      float* row = values.data() + t * head_dim_;
      float sum = 0;
      for (int c = 0; c < head_dim_; ++c) sum = sum + row[c] * row[c];
      const uint16_t norm = FloatToHalf(std::sqrt(sum));
      PutHalf(norms + 2 * t, norm);
      const float length = HalfToFloat(norm);
      for (int c = 0; c < head_dim_ && length > 0; ++c) row[c] = row[c] / length;
    }
  }

  std::vector<float> low(static_cast<size_t>(n_groups_ * n_per_group_), INFINITY), high(low.size(), -INFINITY);
  for (int t = first; t < tokens_; ++t) {
    for (int c = 0; c < head_dim_; ++c) {
      const size_t at = static_cast<size_t>(GroupOf(t, c) * n_per_group_ + IndexOf(t, c));
      const float v = values[static_cast<size_t>(t * head_dim_ + c)];
      low[at] = v < low[at] ? v : low[at];
      high[at] = v > high[at] ? v : high[at];
    }
  }
  std::vector<float> scale(low.size()), centre(low.size());
  for (size_t i = 0; i < low.size(); ++i) {
    uint16_t s = 0, m = 0;
    if (low[i] <= high[i]) {
      m = format_.symmetric ? 0 : FloatToHalf(0.5f * (low[i] + high[i]));
      const float middle = HalfToFloat(m);  // the range is measured from the centre as it is kept
      const float above = high[i] - middle, below = middle - low[i];
      s = HalfNotBelow((above > below ? above : below) / (four_bits ? 7.5f : 127.0f));
    }
    scale[i] = HalfToFloat(s);
    centre[i] = HalfToFloat(m);
    const size_t g = i / static_cast<size_t>(n_per_group_), index = i % static_cast<size_t>(n_per_group_);
    uint8_t* params = out + params_ + g * static_cast<size_t>(n_per_group_) * 4;
    PutHalf(params + 2 * index, s);
    PutHalf(params + 2 * (static_cast<size_t>(n_per_group_) + index), m);
  }
  for (int t = 0; t < tokens_; ++t) {
    for (int c = 0; c < head_dim_; ++c) {
      const size_t i = static_cast<size_t>(GroupOf(t, c) * n_per_group_ + IndexOf(t, c));
      const float v = values[static_cast<size_t>(t * head_dim_ + c)];
      const uint8_t code = Quantize(v, centre[i], t < first ? 0.0f : scale[i], four_bits);
      const At at = CodeAt(t, c);
      out[at.byte] = static_cast<uint8_t>(out[at.byte] | code << at.shift);
    }
  }
}

void KvBlock::Place(const float* x, uint8_t* out) const {
  for (int t = 0; t < tokens_; ++t) {
    for (int c = 0; c < head_dim_; ++c) {
      const float full = x[t * head_dim_ + c];
      if (format_.code == KvCode::kF16) PutHalf(out + FloatAt(t, c) * 2, FloatToHalf(full));
      else std::memcpy(out + FloatAt(t, c) * 4, &full, 4);
    }
  }
}

void KvBlock::Decode(const uint8_t* block, float* x) const {
  if (format_.is_float()) {
    for (int t = 0; t < tokens_; ++t) {
      for (int c = 0; c < head_dim_; ++c) {
        if (format_.code == KvCode::kF16) x[t * head_dim_ + c] = GetHalf(block + FloatAt(t, c) * 2);
        else std::memcpy(x + t * head_dim_ + c, block + FloatAt(t, c) * 4, 4);
      }
    }
    return;
  }
  const bool four_bits = format_.code == KvCode::kInt4;
  for (int t = 0; t < tokens_; ++t) {
    const float norm = format_.norm ? GetHalf(block + bytes() - static_cast<size_t>(tokens_ - t) * 2) : 1.0f;
    for (int c = 0; c < head_dim_; ++c) {
      const size_t per_group = static_cast<size_t>(n_per_group_), index = static_cast<size_t>(IndexOf(t, c));
      const uint8_t* params = block + params_ + static_cast<size_t>(GroupOf(t, c)) * per_group * 4;
      const float scale = GetHalf(params + 2 * index), centre = GetHalf(params + 2 * (per_group + index));
      const At at = CodeAt(t, c);
      const float n = four_bits ? static_cast<float>(block[at.byte] >> at.shift & 15) - 7.5f
                                : static_cast<float>(static_cast<int8_t>(block[at.byte]));
      x[t * head_dim_ + c] = (centre + scale * n) * norm;
    }
  }
}

}  // namespace kvart

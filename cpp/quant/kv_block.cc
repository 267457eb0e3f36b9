#include "quant/kv_block.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <vector>

#include "quant/half.h"

namespace kvart {
namespace {

// As FloatToHalf, but with one NaN only: which one an operation makes is the processor's business, and bytes are not.
uint16_t ToHalf(float x) {
  return std::isnan(x) ? uint16_t{0x7e00} : FloatToHalf(x);
}

// The smallest half that is not below x >= 0, so that the range it spans covers x.
uint16_t HalfNotBelow(float x) {
  const uint16_t h = ToHalf(x);
  return HalfToFloat(h) < x ? static_cast<uint16_t>(h + 1) : h;
}

void PutHalf(uint8_t* to, uint16_t h) {
  std::memcpy(to, &h, sizeof h);
}
float GetHalf(const uint8_t* from) {
  uint16_t h;
  std::memcpy(&h, from, sizeof h);
  return HalfToFloat(h);
}

// What follows is written for a compiler that makes vectors of inner loops: no branches in them, neighbours in memory.

// The same as HalfToFloat, except for the bits of NaN.
void ToFloats(const uint16_t* x, size_t n, float* y) {
  for (size_t i = 0; i < n; ++i) {
    const uint32_t sign = static_cast<uint32_t>(x[i] & 0x8000) << 16;
    const uint32_t magnitude = static_cast<uint32_t>(x[i] & 0x7fff) << 13;
    const float subnormal = static_cast<float>(x[i] & 0x3ff) * 0x1p-24f;
    const uint32_t normal = magnitude + (112u << 23), special = magnitude | 0x7f800000u;
    const uint32_t small = magnitude < 1u << 23 ? std::bit_cast<uint32_t>(subnormal) : normal;
    y[i] = std::bit_cast<float>((magnitude >= 31u << 23 ? special : small) | sign);
  }
}

// rows: (tokens, head_dim), each from `first` on divided by its length; norms: (tokens) halves.
void Normalize(int tokens, int head_dim, int first, float* rows, uint8_t* norms) {
  for (int t = first; t < tokens; ++t) {
    float* row = rows + t * head_dim;
    float sum = 0;
    for (int c = 0; c < head_dim; ++c) sum = sum + row[c] * row[c];
    const uint16_t norm = ToHalf(std::sqrt(sum));
    PutHalf(norms + 2 * t, norm);
    const float length = HalfToFloat(norm);
    if (!(length > 0)) continue;
    for (int c = 0; c < head_dim; ++c) row[c] = row[c] / length;
  }
}

// x: (rows, cols) → y: (cols, rows)
template <class T>
void Transpose(const T* x, int rows, int cols, T* y) {
  for (int i = 0; i < rows; ++i) {
    for (int j = 0; j < cols; ++j) y[j * rows + i] = x[i * cols + j];
  }
}

// Each column's lowest and highest of the rows, NaN left out. x: (rows, cols); low, high: (cols)
void Ranges(const float* x, int rows, int cols, float* low, float* high) {
  std::fill(low, low + cols, INFINITY);
  std::fill(high, high + cols, -INFINITY);
  for (int i = 0; i < rows; ++i, x += cols) {
    for (int j = 0; j < cols; ++j) {
      low[j] = x[j] < low[j] ? x[j] : low[j];
      high[j] = x[j] > high[j] ? x[j] : high[j];
    }
  }
}

// What differs between four and eight bits: the code is (x - centre) / scale + offset, cut to least … most, or `none`
// without a scale.
struct Coding {
  float offset, least, most, none;
};
constexpr Coding kFourBits = {7.5f, 0.0f, 15.0f, 8.0f};
constexpr Coding kEightBits = {0.0f, -127.0f, 127.0f, 0.0f};

// x: (n), each with its scale and centre → codes: (n), as the 4 or 8 bits that are stored.
void Quantize(const float* x, const float* scale, const float* centre, const Coding& coding, int n, uint8_t* codes) {
  const auto [offset, least, most, none] = coding;
  for (int i = 0; i < n; ++i) {
    float code = (x[i] - centre[i]) / scale[i] + offset;
    code = code > least ? code : least;  // NaN becomes the least
    code = code < most ? code : most;
    code = scale[i] > 0 ? code : none;
    code = (code + 12582912.0f) - 12582912.0f;  // to nearest, ties to even
    codes[i] = static_cast<uint8_t>(static_cast<int32_t>(code));
  }
}

// codes: (lanes, n) → out: eight lanes and four elements a vector, or twice four in the halves of bytes.
void Pack(const uint8_t* codes, int lanes, int n, bool four_bits, uint8_t* out) {
  const int step = four_bits ? 8 : 4;
  for (int lane = 0; lane < lanes; ++lane, codes += n) {
    uint8_t* to = out + lane / 8 * (n / step) * 32 + lane % 8 * 4;
    for (int i = 0; i < n; i += step, to += 32) {
      uint32_t low, high = 0;
      std::memcpy(&low, codes + i, 4);
      if (four_bits) std::memcpy(&high, codes + i + 4, 4);
      low |= high << 4;  // codes below 16 stay in their bytes
      std::memcpy(to, &low, 4);
    }
  }
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

// Dot instructions add four neighbouring bytes: four channels of a token for keys, four tokens of a channel for values;
// a 32-byte vector is eight of the other. Four-bit codes put the next four beside them, in the high halves.
KvBlock::At KvBlock::CodeAt(int t, int c) const {
  const int lane = keys_ ? t : c, along = keys_ ? c : t;  // lanes of a vector; what the dot adds up
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
        if (format_.code == KvCode::kF16)
          std::memcpy(out + FloatAt(t, c) * 2, &half, 2);
        else
          std::memcpy(out + FloatAt(t, c) * 4, &full, 4);
      }
    }
    return;
  }
  // As a matrix whose columns are channels or tokens with scales of their own, one for each group of rows.
  const bool channels = format_.axis == KvAxis::kChannel, four_bits = format_.code == KvCode::kInt4;
  const int cols = n_per_group_, rows = channels ? tokens_ : head_dim_;
  const size_t n_cols = static_cast<size_t>(cols), n = static_cast<size_t>(rows) * n_cols;
  first = std::min(first, tokens_);
  std::vector<float> values(n), turned(channels ? 0 : n);
  ToFloats(x, n, values.data());
  if (format_.norm) {
    uint8_t* norms = out + bytes() - static_cast<size_t>(tokens_) * 2;
    std::memset(norms, 0, static_cast<size_t>(tokens_) * 2);
    Normalize(tokens_, head_dim_, first, values.data(), norms);
  }
  if (!channels) {
    Transpose(values.data(), tokens_, head_dim_, turned.data());
    values.swap(turned);
  }

  const Coding& coding = four_bits ? kFourBits : kEightBits;
  std::vector<float> low(n_cols), high(n_cols), scale(n_cols), centre(n_cols);
  std::vector<uint8_t> codes(n);
  uint8_t* params = out + params_;
  for (int begin = 0; begin < rows; begin += group_, params += n_cols * 4) {
    const int end = std::min(rows, begin + group_), from = channels ? std::clamp(first, begin, end) : begin;
    Ranges(values.data() + from * cols, end - from, cols, low.data(), high.data());
    for (int j = 0; j < cols; ++j) {
      const size_t i = static_cast<size_t>(j);
      uint16_t s = 0, m = 0;
      if (low[i] <= high[i] && (channels || j >= first)) {
        m = format_.symmetric ? 0 : ToHalf(0.5f * (low[i] + high[i]));
        const float middle = HalfToFloat(m);  // the range is measured from the centre as it is kept
        const float above = high[i] - middle, below = middle - low[i];
        s = HalfNotBelow((above > below ? above : below) / (four_bits ? 7.5f : 127.0f));
      }
      scale[i] = HalfToFloat(s);
      centre[i] = HalfToFloat(m);
      PutHalf(params + 2 * i, s);
      PutHalf(params + 2 * (n_cols + i), m);
    }
    for (int i = begin; i < end; ++i) {
      Quantize(values.data() + i * cols, scale.data(), centre.data(), coding, cols, codes.data() + i * cols);
    }
  }
  if (channels) std::fill(codes.data(), codes.data() + first * cols, static_cast<uint8_t>(coding.none));

  if (keys_ == channels) {
    Pack(codes.data(), rows, cols, four_bits, out);
    return;
  }
  std::vector<uint8_t> lanes(n);
  Transpose(codes.data(), rows, cols, lanes.data());
  Pack(lanes.data(), cols, rows, four_bits, out);
}

void KvBlock::Place(const float* x, uint8_t* out) const {
  for (int t = 0; t < tokens_; ++t) {
    for (int c = 0; c < head_dim_; ++c) {
      const float full = x[t * head_dim_ + c];
      const uint16_t half = FloatToHalf(full);
      if (format_.code == KvCode::kF16)
        std::memcpy(out + FloatAt(t, c) * 2, &half, 2);
      else
        std::memcpy(out + FloatAt(t, c) * 4, &full, 4);
    }
  }
}

void KvBlock::Decode(const uint8_t* block, float* x) const {
  if (format_.is_float()) {
    for (int t = 0; t < tokens_; ++t) {
      for (int c = 0; c < head_dim_; ++c) {
        if (format_.code == KvCode::kF16)
          x[t * head_dim_ + c] = GetHalf(block + FloatAt(t, c) * 2);
        else
          std::memcpy(x + t * head_dim_ + c, block + FloatAt(t, c) * 4, 4);
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

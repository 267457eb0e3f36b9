#include "quant/kv_fine.h"

#include <algorithm>
#include <cstring>
#include <numeric>

#include "quant/half.h"

namespace kvart {
namespace {

uint16_t GetU16(const uint8_t* from) {
  return static_cast<uint16_t>(from[0] | from[1] << 8);
}
void PutU16(uint8_t* to, size_t value) {
  to[0] = static_cast<uint8_t>(value & 255);
  to[1] = static_cast<uint8_t>(value >> 8 & 255);
}

// Scale and centre of a channel; keys have one group (KvFormat::fine).
float ScaleOf(const KvBlock& keys, const uint8_t* block, int c) {
  return HalfToFloat(GetU16(block + keys.params() + 2 * static_cast<size_t>(c)));
}
float CentreOf(const KvBlock& keys, const uint8_t* block, int c) {
  return HalfToFloat(GetU16(block + keys.params() + 2 * static_cast<size_t>(keys.head_dim() + c)));
}

}  // namespace

KvFine::KvFine(int n_heads, int rows, int tokens)
    : n_heads_(n_heads),
      rows_(rows),
      tokens_(tokens),
      row_bytes_(static_cast<size_t>(tokens + 15) / 16 * 8),
      codes_((static_cast<size_t>(n_heads + 1 + rows) * 2 + 63) / 64 * 64) {}

KvFine::Head KvFine::head(const uint8_t* section, int64_t index) const {
  if (rows_ == 0) return {};
  const uint8_t* starts = section + 2 * index;
  const int begin = GetU16(starts), end = GetU16(starts + 2);
  return {section + 2 * static_cast<size_t>(n_heads_ + 1 + begin),
          section + codes_ + static_cast<size_t>(begin) * row_bytes_, end - begin, row_bytes_};
}

bool KvFine::Valid(std::span<const uint8_t> section, int head_dim) const {
  if (section.size() != bytes()) return false;
  if (rows_ == 0) return true;
  int last = 0;
  for (int i = 0; i <= n_heads_; ++i) {
    const int start = GetU16(section.data() + 2 * i);
    if (start < last || start > rows_ || (i == 0 && start != 0)) return false;
    last = start;
  }
  const uint8_t* channels = section.data() + 2 * static_cast<size_t>(n_heads_ + 1);
  int head = 0, before = -1;  // a head's channels rise
  for (int i = 0; i < rows_; ++i) {
    while (head < n_heads_ && GetU16(section.data() + 2 * (head + 1)) <= i) ++head, before = -1;
    const int channel = GetU16(channels + 2 * i);
    if (channel <= before || channel >= head_dim) return false;
    before = channel;
  }
  return last == rows_;
}

void KvFine::Choose(std::span<const float> importance, int head_dim, uint8_t* section) const {
  if (rows_ == 0) return;
  std::memset(section, 0, codes_);
  std::vector<uint32_t> order(importance.size());
  std::iota(order.begin(), order.end(), 0u);
  const auto before = [&](uint32_t a, uint32_t b) {
    return importance[a] > importance[b] || (importance[a] == importance[b] && a < b);
  };
  std::nth_element(order.begin(), order.begin() + rows_, order.end(), before);
  std::sort(order.begin(), order.begin() + rows_);
  size_t row = 0;
  for (size_t head = 0; head < static_cast<size_t>(n_heads_); ++head) {
    PutU16(section + 2 * head, row);
    for (; row < static_cast<size_t>(rows_) && order[row] / static_cast<uint32_t>(head_dim) == head; ++row) {
      PutU16(section + 2 * (static_cast<size_t>(n_heads_) + 1 + row), order[row] % static_cast<uint32_t>(head_dim));
    }
  }
  PutU16(section + 2 * static_cast<size_t>(n_heads_), row);
}

void KvFine::Encode(const KvBlock& keys, const uint8_t* block, const uint16_t* x, int first, int64_t index,
                    uint8_t* section) const {
  const Head rows = head(section, index);
  uint8_t* codes = section + (rows.codes - section);
  for (int i = 0; i < rows.n; ++i, codes += row_bytes_) {
    const int c = rows.channel(i);
    const float scale = ScaleOf(keys, block, c), centre = CentreOf(keys, block, c), fine = scale * 0.0625f;
    std::memset(codes, 0, row_bytes_);
    for (int t = 0; t < tokens_; ++t) {
      const KvBlock::At at = keys.CodeAt(t, c);
      const float n = static_cast<float>(block[at.byte] >> at.shift & 15) - 7.5f;
      const float left = HalfToFloat(x[t * keys.head_dim() + c]) - (centre + scale * n);
      float code = left / fine + 7.5f;
      code = code > 0.0f ? code : 0.0f;  // NaN becomes 0
      code = code < 15.0f ? code : 15.0f;
      code = fine > 0 && t >= first ? code : 8.0f;
      code = (code + 12582912.0f) - 12582912.0f;  // to nearest, ties to even
      uint8_t& byte = codes[CodeAt(t)];
      byte = static_cast<uint8_t>(byte | static_cast<uint8_t>(code) << t % 16 / 8 * 4);
    }
  }
}

void KvFine::AddTo(const KvBlock& keys, const uint8_t* block, int64_t index, const uint8_t* section, float* x) const {
  const Head rows = head(section, index);
  const uint8_t* codes = rows.codes;
  for (int i = 0; i < rows.n; ++i, codes += row_bytes_) {
    const int c = rows.channel(i);
    const float fine = ScaleOf(keys, block, c) * 0.0625f;
    for (int t = 0; t < tokens_; ++t) {
      const float code = static_cast<float>(codes[CodeAt(t)] >> t % 16 / 8 * 4 & 15) - 7.5f;
      x[t * keys.head_dim() + c] = x[t * keys.head_dim() + c] + fine * code;
    }
  }
}

}  // namespace kvart

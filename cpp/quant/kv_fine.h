// Second codes for a few channels of a page's 4-bit keys: what rounding left, in sixteenths of the channel's scale. A
// page has room for so many rows, and they go to the channels, of all layers and heads, whose rounding would cost the
// scores most. May depend on: base, quant. The bytes are drawn in kvcache/FORMAT.md.
//
// Next for the token: kernels/ add q[channel] * scale / 16 * (m - 7.5) to the scores, m the second code.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "quant/kv_block.h"

namespace kvart {

// Where things lie in a section of `rows` rows for n_heads heads (KV heads of all layers):
//   starts    (n_heads + 1) u16: head i has the rows starts[i] … starts[i + 1] - 1
//   channels  (rows) u16
//   codes     from the next multiple of 64 on: (rows, ceil(tokens / 16), 8) bytes; byte j of 16 tokens has token j in
//             its low half, 8 + j in its high
class KvFine {
 public:
  KvFine(int n_heads, int rows, int tokens);

  int rows() const { return rows_; }
  size_t row_bytes() const { return row_bytes_; }
  size_t table_bytes() const { return rows_ == 0 ? 0 : codes_; }  // starts and channels
  size_t bytes() const { return rows_ == 0 ? 0 : codes_ + static_cast<size_t>(rows_) * row_bytes_; }

  struct Head {
    const uint8_t* channels = nullptr;  // (n) u16
    const uint8_t* codes = nullptr;     // (n, row_bytes)
    int n = 0;
    size_t row_bytes = 0;
    uint16_t channel(int i) const { return static_cast<uint16_t>(channels[2 * i] | channels[2 * i + 1] << 8); }
  };
  Head head(const uint8_t* section, int64_t index) const;
  // Whether a section that came from a file can be used.
  bool Valid(std::span<const uint8_t> section, int head_dim) const;

  // importance: (n_heads, head_dim). Fills starts and channels: the `rows` highest, the first of equals.
  void Choose(std::span<const float> importance, int head_dim, uint8_t* section) const;
  // The codes of the head's rows. keys: the head's block, sealed from x: (tokens, head_dim) halves; tokens before first
  // are left out.
  void Encode(const KvBlock& keys, const uint8_t* block, const uint16_t* x, int first, int64_t index,
              uint8_t* section) const;
  // Adds what the head's rows say to x: (tokens, head_dim) floats, which keys.Decode gave.
  void AddTo(const KvBlock& keys, const uint8_t* block, int64_t index, const uint8_t* section, float* x) const;

  size_t CodeAt(int t) const {
    return static_cast<size_t>(t / 16 * 8 + t % 8);
  }  // byte in a row; shift: t % 16 / 8 * 4

 private:
  int n_heads_, rows_, tokens_;
  size_t row_bytes_, codes_;
};

}  // namespace kvart

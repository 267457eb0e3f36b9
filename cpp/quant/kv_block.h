// One KV head's keys or values of one sealed page: sizes, encoding, decoding. Scalar, and the truth for every kernel.
// May depend on: base, quant. The bytes are drawn in kvcache/FORMAT.md.
//
// A value is centre + scale * x, with x = n - 7.5 for a 4-bit code n and x = n for an 8-bit one (-127 … 127). Scales
// and centres are halves. The centre, not the minimum, so that what integer dots leave out is small; the middle between
// two codes, so that 4 bits use all of theirs.
#pragma once

#include <cstddef>
#include <cstdint>

#include "quant/kv_format.h"

namespace kvart {

// Where things lie in a block of `tokens` (a multiple of 8) by `head_dim` (a multiple of 8).
class KvBlock {
 public:
  KvBlock(const KvFormat& format, bool keys, int tokens, int head_dim);

  size_t bytes() const { return params_ + params_bytes_; }
  // Offset of parameters from the block's start: n_groups() times scales then centres, each (n_per_group()) halves,
  // then norms (tokens).
  size_t params() const { return params_; }
  int n_groups() const { return n_groups_; }
  int n_per_group() const { return n_per_group_; }  // head_dim where the axis is channels, tokens where it is tokens
  int group() const { return group_; }              // values that share a scale
  int tokens() const { return tokens_; }
  int head_dim() const { return head_dim_; }
  const KvFormat& format() const { return format_; }

  // Of floats: keys (tokens / 8, head_dim, 8), values (tokens, head_dim), as in the open page. Of integers:
  // byte and shift of the code of token t, channel c, from the block's start.
  struct At {
    size_t byte;
    int shift;
  };
  At CodeAt(int t, int c) const;
  size_t FloatAt(int t, int c) const;  // in elements

  // x: (tokens, head_dim) halves → out: bytes(). Tokens before first are not part of any range and get code 8 or 0. The
  // bytes depend on x and nothing else: every operation is one IEEE float32 operation in the order written.
  void Encode(const uint16_t* x, int first, uint8_t* out) const;
  // Of floats: x (tokens, head_dim) floats → out: bytes(), rounded to halves where that is the format.
  void Place(const float* x, uint8_t* out) const;
  // block: bytes() → x: (tokens, head_dim) floats.
  void Decode(const uint8_t* block, float* x) const;

 private:
  int GroupOf(int t, int c) const { return format_.axis == KvAxis::kChannel ? t / group_ : c / group_; }
  int IndexOf(int t, int c) const { return format_.axis == KvAxis::kChannel ? c : t; }

  KvFormat format_;
  bool keys_;
  int tokens_, head_dim_, group_, n_groups_, n_per_group_;
  size_t params_, params_bytes_;
};

}  // namespace kvart

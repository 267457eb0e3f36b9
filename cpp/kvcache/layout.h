// Where every key and value lies: the only place that computes K/V offsets. May depend on: base, quant.
// Next for the token: kvcache/sequence.h hands out views; kernels read them through plain pointers.
//
// Head-major: one KV head's keys, then its values, so that a query group reads one run of memory and nothing is
// replicated.
//   keys   (tokens / 8, head_dim, 8)  tiles of eight tokens, channel-major: vector lanes are tokens, and the tile of a
//   new token is local values (tokens, head_dim)
// A layer is its heads one after another; a run of memory is its layers one after another.
#pragma once

#include <cstdint>
#include <string>

#include "base/status.h"
#include "quant/kv_block.h"
#include "quant/kv_fine.h"
#include "quant/kv_format.h"

namespace kvart {

constexpr int kTileTokens = 8;

// A page's slot: a head, the payload from PayloadOffset() on, rounded up. 16 KiB suits every size of a system's pages.
constexpr uint64_t kSlotAlign = 16384;
constexpr uint64_t SlotHeadBytes(int page_tokens) {
  return 96 + 4 * static_cast<uint64_t>(page_tokens);
}
constexpr uint64_t PayloadOffset(int page_tokens) {
  return (SlotHeadBytes(page_tokens) + 1023) / 1024 * 1024;
}
constexpr uint64_t SlotBytes(int page_tokens, uint64_t payload_bytes) {
  return (PayloadOffset(page_tokens) + payload_bytes + kSlotAlign - 1) / kSlotAlign * kSlotAlign;
}

// The shape of a model's K/V and the formats they are kept in. Two caches fit together only if all of it is equal.
struct KvGeometry {
  int n_layers = 0;
  int n_kv_heads = 0;
  int head_dim = 0;
  int page_tokens = 128;
  KvFormats formats;
  int sinks = 0;  // first tokens of a text that stay half precision when their page is sealed

  bool operator==(const KvGeometry&) const = default;
  std::string ToString() const;  // "24 layers, 2 KV heads of 64, pages of 128 tokens, k=int4, v=int4, 4 sinks"
  // Full pages are turned into integers: sealed. Otherwise they stay as they were written.
  bool seals() const { return !formats.k.is_float() || !formats.v.is_float(); }
  // The formats of the open page: integers are halves until they are sealed.
  KvCode open_k() const { return formats.k.is_float() && !seals() ? formats.k.code : KvCode::kF16; }
  KvCode open_v() const { return formats.v.is_float() && !seals() ? formats.v.code : KvCode::kF16; }
};

inline int64_t ElementBytes(KvCode code) {
  return code == KvCode::kF32 ? 4 : 2;
}

// InvalidArgument names what is out of range.
Status CheckGeometry(const KvGeometry& geometry);

// Offsets in a run of float memory that holds `capacity` tokens (a multiple of kTileTokens) of every layer.
class KvOffsets {
 public:
  KvOffsets(const KvGeometry& geometry, int64_t capacity)
      : n_layers_(geometry.n_layers),
        n_kv_heads_(geometry.n_kv_heads),
        k_token_bytes_(ElementBytes(geometry.open_k()) * geometry.head_dim),
        v_token_bytes_(ElementBytes(geometry.open_v()) * geometry.head_dim),
        capacity_(capacity) {}

  int64_t head_bytes() const { return capacity_ * (k_token_bytes_ + v_token_bytes_); }
  int64_t layer_bytes() const { return head_bytes() * n_kv_heads_; }
  uint64_t bytes() const { return static_cast<uint64_t>(layer_bytes()) * static_cast<uint64_t>(n_layers_); }
  uint64_t token_bytes() const {  // in all layers
    return static_cast<uint64_t>((k_token_bytes_ + v_token_bytes_) * n_kv_heads_ * n_layers_);
  }

  // The key tile, or the values, of the token at `token` (for keys a multiple of kTileTokens), KV head 0.
  int64_t Keys(int layer, int64_t token) const { return layer * layer_bytes() + token * k_token_bytes_; }
  int64_t Values(int layer, int64_t token) const {
    return layer * layer_bytes() + capacity_ * k_token_bytes_ + token * v_token_bytes_;
  }

 private:
  int n_layers_, n_kv_heads_;
  int64_t k_token_bytes_, v_token_bytes_, capacity_;
};

// How many fine rows a sealed page has: what the rounding of its slot leaves room for, so that they cost nothing; at
// least one for 128 channels, at most one for 16. 0 where the keys' format has none.
int FineRows(const KvGeometry& geometry);

// Offsets in a sealed page's payload: for each layer, for each KV head, the key block and the value block; then, from
// the next multiple of 64 on, the fine rows of all.
class SealedOffsets {
 public:
  explicit SealedOffsets(const KvGeometry& g)
      : keys_(g.formats.k, true, g.page_tokens, g.head_dim),
        values_(g.formats.v, false, g.page_tokens, g.head_dim),
        fine_(g.n_layers * g.n_kv_heads, FineRows(g), g.page_tokens),
        n_layers_(g.n_layers),
        n_kv_heads_(g.n_kv_heads) {}

  const KvBlock& keys() const { return keys_; }
  const KvBlock& values() const { return values_; }
  const KvFine& fine() const { return fine_; }
  int64_t head_bytes() const { return static_cast<int64_t>(keys_.bytes() + values_.bytes()); }
  uint64_t bytes() const { return fine_.rows() > 0 ? Fine() + fine_.bytes() : block_bytes(); }
  int64_t Keys(int layer) const { return layer * n_kv_heads_ * head_bytes(); }  // KV head 0
  int64_t Values(int layer) const { return Keys(layer) + static_cast<int64_t>(keys_.bytes()); }
  uint64_t Fine() const { return (block_bytes() + 63) / 64 * 64; }

 private:
  uint64_t block_bytes() const { return static_cast<uint64_t>(head_bytes() * n_kv_heads_ * n_layers_); }

  KvBlock keys_, values_;
  KvFine fine_;
  int n_layers_, n_kv_heads_;
};

// Index of channel c of token t in one head's keys, and of dimension d in its values, in elements.
inline int64_t KeyIndex(int64_t t, int c, int head_dim) {
  return (t / kTileTokens * head_dim + c) * kTileTokens + t % kTileTokens;
}
inline int64_t ValueIndex(int64_t t, int d, int head_dim) {
  return t * head_dim + d;
}

}  // namespace kvart

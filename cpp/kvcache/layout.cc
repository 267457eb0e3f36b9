#include "kvcache/layout.h"

#include <algorithm>

namespace kvart {

std::string KvGeometry::ToString() const {
  std::string text = std::to_string(n_layers) + " layers, " + std::to_string(n_kv_heads) + " KV heads of " +
                     std::to_string(head_dim) + ", pages of " + std::to_string(page_tokens) +
                     " tokens, k=" + kvart::ToString(formats.k, true) + ", v=" + kvart::ToString(formats.v, false);
  if (seals()) text += ", " + std::to_string(sinks) + " sinks";
  return text;
}

int FineRows(const KvGeometry& g) {
  if (!g.formats.k.fine()) return 0;
  const KvBlock keys(g.formats.k, true, g.page_tokens, g.head_dim),
      values(g.formats.v, false, g.page_tokens, g.head_dim);
  const uint64_t heads = static_cast<uint64_t>(g.n_layers) * static_cast<uint64_t>(g.n_kv_heads);
  const uint64_t channels = heads * static_cast<uint64_t>(g.head_dim);
  const uint64_t used = PayloadOffset(g.page_tokens) + (heads * (keys.bytes() + values.bytes()) + 63) / 64 * 64;
  const uint64_t left = (kSlotAlign - used % kSlotAlign) % kSlotAlign;
  constexpr uint64_t kMost = 65535;  // what its table counts to
  uint64_t rows = std::min(channels / 16, kMost);
  const uint64_t least = std::min(channels / 128, rows);
  // No more than fit without their table: this is asked for again and again, and the rest takes a step or two.
  rows = std::clamp(left / KvFine(0, 0, g.page_tokens).row_bytes(), least, rows);
  const auto bytes = [&](uint64_t n) {
    return KvFine(static_cast<int>(heads), static_cast<int>(n), g.page_tokens).bytes();
  };
  while (rows > least && bytes(rows) > left) --rows;
  return static_cast<int>(rows);
}

Status CheckGeometry(const KvGeometry& g) {
  if (g.n_layers < 1 || g.n_kv_heads < 1) {
    return Errorf(StatusCode::kInvalidArgument,
                  "K/V geometry: %d layers and %d KV heads; at least one of each is wanted", g.n_layers, g.n_kv_heads);
  }
  if (g.head_dim < 8 || g.head_dim % 8 != 0) {
    return Errorf(StatusCode::kUnsupported, "K/V geometry: head_dim is %d; a multiple of 8 is wanted", g.head_dim);
  }
  if (g.page_tokens < kTileTokens || g.page_tokens > 256 || g.page_tokens % kTileTokens != 0) {
    return Errorf(StatusCode::kInvalidArgument,
                  "K/V geometry: pages of %d tokens; a multiple of %d up to 256 is wanted", g.page_tokens, kTileTokens);
  }
  if (g.sinks < 0 || g.sinks > g.page_tokens) {
    return Errorf(StatusCode::kInvalidArgument, "K/V geometry: %d sinks; 0 … %d, a page, are wanted", g.sinks,
                  g.page_tokens);
  }
  return Status::Ok();
}

}  // namespace kvart

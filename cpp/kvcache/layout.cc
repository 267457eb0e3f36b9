#include "kvcache/layout.h"

namespace kvart {

std::string KvGeometry::ToString() const {
  std::string text = std::to_string(n_layers) + " layers, " + std::to_string(n_kv_heads) + " KV heads of " +
                     std::to_string(head_dim) + ", pages of " + std::to_string(page_tokens) +
                     " tokens, k=" + kvart::ToString(formats.k, true) + ", v=" + kvart::ToString(formats.v, false);
  if (seals()) text += ", " + std::to_string(sinks) + " sinks";
  return text;
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

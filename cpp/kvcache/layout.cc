#include "kvcache/layout.h"

namespace kvart {

std::string KvGeometry::ToString() const {
  return std::to_string(n_layers) + " layers, " + std::to_string(n_kv_heads) + " KV heads of " + std::to_string(head_dim) +
         ", pages of " + std::to_string(page_tokens) + " tokens, k=" + std::string(Info(k_type).name) +
         ", v=" + std::string(Info(v_type).name);
}

Status CheckGeometry(const KvGeometry& g) {
  if (g.n_layers < 1 || g.n_kv_heads < 1) {
    return Errorf(StatusCode::kInvalidArgument, "K/V geometry: %d layers and %d KV heads; at least one of each is wanted",
                  g.n_layers, g.n_kv_heads);
  }
  if (g.head_dim < 8 || g.head_dim % 8 != 0) {
    return Errorf(StatusCode::kUnsupported, "K/V geometry: head_dim is %d; a multiple of 8 is wanted", g.head_dim);
  }
  if (g.page_tokens < kTileTokens || g.page_tokens > 256 || g.page_tokens % kTileTokens != 0) {
    return Errorf(StatusCode::kInvalidArgument, "K/V geometry: pages of %d tokens; a multiple of %d up to 256 is wanted",
                  g.page_tokens, kTileTokens);
  }
  for (const DType type : {g.k_type, g.v_type}) {
    if (type != DType::kF16 && type != DType::kF32) {
      return Errorf(StatusCode::kUnsupported, "K/V format %s: f16 or f32 is wanted", std::string(Info(type).name).c_str());
    }
  }
  return Status::Ok();
}

}  // namespace kvart

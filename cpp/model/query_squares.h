// How far a model's queries reach along each channel: what an error in a channel of a key costs. May depend on: base,
// model/config.h, model/rope.h. Next for the token: quant/kv_fine.h gives the weightiest channels a second code.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "model/config.h"
#include "model/rope.h"

namespace kvart {

class QuerySquares {
 public:
  explicit QuerySquares(const ModelConfig& config);

  // Adds one layer's queries after RoPE, q: (n, n_heads, head_dim), as they would be further on in a long text: each is
  // turned on by a number of positions that follows from its row.
  void Add(int layer, int64_t n, const Rope& rope, std::span<const float> q);

  // (n_layers, n_kv_heads, head_dim): sums of squares over the queries that look at a KV head.
  std::span<const float> sums() const { return sums_; }

 private:
  int n_heads_, n_kv_heads_, head_dim_;
  std::vector<float> sums_;
};

}  // namespace kvart

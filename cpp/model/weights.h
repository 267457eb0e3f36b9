// All weights of a model, found by name, checked for shape, handed to the backend. May depend on: base … backend,
// config. Next for the token: model/decoder.h runs over them.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "backend/backend.h"
#include "model/config.h"

namespace kvart {

struct LayerWeights {
  AttentionWeights attention;
  MlpWeights mlp;
};

// Owns everything; the backend must outlive it, and the file too (matrices may lie in its mapping).
struct ModelWeights {
  std::unique_ptr<Matrix> embedding;  // (n_vocab, n_embd), a table
  std::vector<LayerWeights> layers;
  Address final_norm = 0;        // (n_embd)
  std::unique_ptr<Matrix> head;  // (n_vocab, n_embd); the embedding's own rows when the head is tied
  bool tied_head = false;
  std::vector<Block> vectors;  // what the Addresses point into

  uint64_t BytesPerToken() const;  // weights that one decode step reads
};

// progress(part done): false cancels.
Result<ModelWeights> LoadWeights(const GgufFile& file, const ModelConfig& config, Backend& backend,
                                 const std::function<bool(double)>& progress);

}  // namespace kvart

// What a model is, read from GGUF metadata and checked. May depend on: base, gguf.
// Next for the token: model/weights.h finds the tensors of this shape.
#pragma once

#include <cstdint>
#include <string>

#include "base/status.h"
#include "gguf/gguf.h"

namespace kvart {

enum class RopeScaling { kNone, kLinear, kNtk, kYarn };

// How positions become angles. Keys as llama.cpp's converter writes them: <arch>.rope.*
struct RopeConfig {
  double base = 10000.0;
  RopeScaling scaling = RopeScaling::kNone;
  double factor = 1.0;
  double original_ctx = 0;   // the length trained before scaling, for YaRN
  double attn_factor = 1.0;  // YaRN: multiplies the magnitude of q and k on top of its own
  double beta_fast = 32, beta_slow = 1;
};

struct ModelConfig {
  std::string architecture;  // "qwen2" or "qwen3"
  int n_layers = 0, n_embd = 0, n_heads = 0, n_kv_heads = 0, head_dim = 0, n_ff = 0;
  int32_t n_vocab = 0;  // rows of the embedding table
  int64_t n_ctx_train = 0;
  float norm_eps = 0;
  RopeConfig rope;
};

const char* RopeScalingName(RopeScaling scaling);

Result<ModelConfig> ReadConfig(const GgufFile& file);

}  // namespace kvart

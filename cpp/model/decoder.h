// The decoder: one linear pass from token ids to logits over the backend's operations. May depend on: all to the left.
// Next for the token: sampler/sampler.h chooses from the logits.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "backend/backend.h"
#include "kvcache/sequence.h"
#include "model/config.h"
#include "model/query_squares.h"
#include "model/rope.h"
#include "model/weights.h"

namespace kvart {

// Tokens that follow what a sequence holds, and where their logits go.
struct DecodeSpan {
  KvSequence* sequence = nullptr;
  std::span<const int32_t>
      tokens;  // ids in [0, n_vocab), at least one, at most what sequence->Room() allows once its full page is sealed
  float* last_logits = nullptr;  // (n_vocab) of the last token, or none
  float* all_logits = nullptr;   // (tokens.size(), n_vocab), or none
};

// One thread at a time. A row's result does not depend on what else is in the batch.
class Decoder {
 public:
  static Result<std::unique_ptr<Decoder>> Load(const GgufFile& file, std::unique_ptr<Backend> backend,
                                               const std::function<bool(double)>& progress);

  const ModelConfig& config() const { return config_; }
  Backend& backend() { return *backend_; }
  const ModelWeights& weights() const { return weights_; }
  // The K/V shape of this model in these formats.
  KvGeometry Geometry(const KvFormats& formats, int sinks = 0) const;

  // Seals the sequence's open page if it is full. Forward does so by itself; so does whoever looks for pages to adopt.
  Status SealFullPage(KvSequence& sequence);

  // Computes K/V and logits of a batch of spans, each of another sequence, and commits the K/V. On failure no sequence
  // has changed, but that full pages may be sealed.
  Status Forward(std::span<const DecodeSpan> batch) { return Pass(batch, nullptr); }

 private:
  Status Pass(std::span<const DecodeSpan> batch, QuerySquares* squares);
  Status MeasureQueries();
  Decoder(ModelConfig config, std::unique_ptr<Backend> backend)
      : config_(std::move(config)), rope_(config_.rope, config_.head_dim), backend_(std::move(backend)) {}

  Status Check(std::span<const DecodeSpan> batch) const;
  Status ReserveActivations(int64_t n, int64_t n_spans);
  Status WriteLogits(const DecodeSpan& span, int64_t first_row);

  ModelConfig config_;
  Rope rope_;
  std::unique_ptr<Backend> backend_;
  ModelWeights weights_;  // after backend_: freed before it
  std::vector<float>
      query_squares_;  // (n_layers, n_kv_heads, head_dim), once a page was sealed whose keys have fine rows

  // Activations of up to capacity_ rows, in the backend's memory.
  int64_t capacity_ = 0;
  Block x_;         // (n, n_embd): the residual stream
  Block q_;         // (n, n_heads * head_dim)
  Block attended_;  // (n, n_heads * head_dim)
  Block angles_;    // (n + spans, head_dim / 2, 2): of each row, then of each span's turn
  Block logits_;    // (kLogitRows, n_vocab)
};

}  // namespace kvart

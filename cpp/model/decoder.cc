#include "model/decoder.h"

#include <algorithm>
#include <utility>

namespace kvart {
namespace {

constexpr int kQueryTokens = 64;    // more of them choose hardly another channel
constexpr int64_t kLogitRows = 32;  // rows of logits at a time when all are wanted: 20 MB for a Qwen vocabulary

}  // namespace

Result<std::unique_ptr<Decoder>> Decoder::Load(const GgufFile& file, std::unique_ptr<Backend> backend,
                                               const std::function<bool(double)>& progress) {
  KVART_ASSIGN_OR_RETURN(ModelConfig config, ReadConfig(file));
  std::unique_ptr<Decoder> decoder(new Decoder(std::move(config), std::move(backend)));
  KVART_ASSIGN_OR_RETURN(decoder->weights_, LoadWeights(file, decoder->config_, *decoder->backend_, progress));
  return decoder;
}

KvGeometry Decoder::Geometry(const KvFormats& formats, int sinks) const {
  KvGeometry g;
  g.n_layers = config_.n_layers;
  g.n_kv_heads = config_.n_kv_heads;
  g.head_dim = config_.head_dim;
  g.formats = formats;
  g.sinks = g.seals() ? sinks : 0;
  return g;
}

Status Decoder::Check(std::span<const DecodeSpan> batch) const {
  for (const DecodeSpan& span : batch) {
    const KvGeometry& found = span.sequence->geometry();
    KvGeometry wanted = Geometry(found.formats, found.sinks);
    wanted.page_tokens = found.page_tokens;
    if (found != wanted) {
      return Status(StatusCode::kInvalidArgument,
                    "K/V cache has " + found.ToString() + "; the model has " + wanted.ToString());
    }
    for (const int32_t id : span.tokens) {
      if (id >= 0 && id < config_.n_vocab) continue;
      return Errorf(StatusCode::kInvalidArgument, "token id %d is out of range; the vocabulary has 0 … %d", id,
                    config_.n_vocab - 1);
    }
  }
  return Status::Ok();
}

Status Decoder::ReserveActivations(int64_t n, int64_t n_spans) {
  if (const size_t bytes = static_cast<size_t>((n + n_spans) * config_.head_dim) * sizeof(float);
      angles_.bytes() < bytes) {
    KVART_ASSIGN_OR_RETURN(angles_, Block::Allocate(backend_->memory(), bytes));
  }
  if (n <= capacity_) return Status::Ok();
  Memory& memory = backend_->memory();
  const size_t rows = static_cast<size_t>(n) * sizeof(float);
  const size_t attention = static_cast<size_t>(config_.n_heads) * static_cast<size_t>(config_.head_dim);
  capacity_ = 0;
  KVART_ASSIGN_OR_RETURN(x_, Block::Allocate(memory, rows * static_cast<size_t>(config_.n_embd)));
  KVART_ASSIGN_OR_RETURN(q_, Block::Allocate(memory, rows * attention));
  KVART_ASSIGN_OR_RETURN(attended_, Block::Allocate(memory, rows * attention));
  capacity_ = n;
  return Status::Ok();
}

Status Decoder::SealFullPage(KvSequence& sequence) {
  const Address page = sequence.FullPage();
  if (page == 0) return Status::Ok();
  std::vector<uint8_t> payload;
  const KvGeometry& g = sequence.geometry();
  const int first = sequence.size() == g.page_tokens ? g.sinks : 0;
  if (g.formats.k.fine() && query_squares_.empty()) KVART_RETURN_IF_ERROR(MeasureQueries());
  KVART_RETURN_IF_ERROR(backend_->SealPage(g, page, first, query_squares_, &payload));
  return sequence.Seal(payload);
}

// From a text of arbitrary tokens: which way a head's queries point is in its weights, and what the text is about
// changes it little (docs/quality.md). So nothing has to be brought along, and every text gets the same.
Status Decoder::MeasureQueries() {
  const KvFormats f16 = {{KvCode::kF16}, {KvCode::kF16}};
  KVART_ASSIGN_OR_RETURN(const std::unique_ptr<KvSequence> sequence,
                         NewContiguousSequence(Geometry(f16), backend_->memory()));
  std::vector<int32_t> ids(kQueryTokens);
  uint64_t random = 0x9e3779b97f4a7c15u;
  for (int32_t& id : ids) {  // xorshift64 (Marsaglia 2003)
    random ^= random << 13;
    random ^= random >> 7;
    random ^= random << 17;
    id = static_cast<int32_t>(random % static_cast<uint64_t>(config_.n_vocab));
  }
  QuerySquares squares(config_);
  const DecodeSpan span{sequence.get(), ids};
  KVART_RETURN_IF_ERROR(Pass({&span, 1}, &squares));
  query_squares_.assign(squares.sums().begin(), squares.sums().end());
  return Status::Ok();
}

// squares, if any, gets the queries of all layers.
Status Decoder::Pass(std::span<const DecodeSpan> batch, QuerySquares* squares) {
  KVART_RETURN_IF_ERROR(Check(batch));
  for (const DecodeSpan& span : batch) KVART_RETURN_IF_ERROR(SealFullPage(*span.sequence));
  std::vector<int32_t> tokens;
  std::vector<float> angles;
  std::vector<KvSpan> spans;
  for (const DecodeSpan& span : batch) {
    const int64_t n = static_cast<int64_t>(span.tokens.size()), pos = span.sequence->size();
    spans.push_back({static_cast<int64_t>(tokens.size()), n, pos, {}});
    tokens.insert(tokens.end(), span.tokens.begin(), span.tokens.end());
    angles.resize(tokens.size() * static_cast<size_t>(config_.head_dim));
    for (int64_t i = 0; i < n; ++i)
      rope_.Angles(pos + i, angles.data() + (spans.back().first_row + i) * config_.head_dim);
    KVART_RETURN_IF_ERROR(span.sequence->Check());
    KVART_RETURN_IF_ERROR(span.sequence->Reserve(n));
  }
  const int64_t n = static_cast<int64_t>(tokens.size());
  // Behind the rows' angles, each span's turn back over what its window dropped.
  for (size_t i = 0; i < spans.size(); ++i) {
    angles.resize(angles.size() + static_cast<size_t>(config_.head_dim));
    rope_.Turn(-batch[i].sequence->View(0, spans[i].pos + spans[i].n).dropped,
               angles.data() + (n + static_cast<int64_t>(i)) * config_.head_dim);
  }
  KVART_RETURN_IF_ERROR(ReserveActivations(n, static_cast<int64_t>(spans.size())));
  KVART_RETURN_IF_ERROR(backend_->memory().Write(angles_.address(), angles.data(), angles.size() * sizeof(float)));

  for (size_t i = 0; i < spans.size(); ++i) {
    spans[i].turn =
        angles_.address() + static_cast<Address>((n + static_cast<int64_t>(i)) * config_.head_dim) * sizeof(float);
  }
  const AttentionShape shape = {config_.n_embd, config_.n_heads, config_.n_kv_heads, config_.head_dim,
                                config_.norm_eps};
  const Address x = x_.address(), q = q_.address(), attended = attended_.address();

  KVART_RETURN_IF_ERROR(backend_->Embed(*weights_.embedding, tokens, x));
  for (int layer = 0; layer < config_.n_layers; ++layer) {
    const LayerWeights& w = weights_.layers[static_cast<size_t>(layer)];
    for (size_t i = 0; i < spans.size(); ++i) spans[i].view = batch[i].sequence->View(layer, spans[i].pos + spans[i].n);
    KVART_RETURN_IF_ERROR(backend_->ProjectQkv(w.attention, shape, n, x, angles_.address(), spans, q));
    if (squares != nullptr) {
      std::vector<float> queries(static_cast<size_t>(n * config_.n_heads * config_.head_dim));
      KVART_RETURN_IF_ERROR(backend_->memory().Read(queries.data(), q, queries.size() * sizeof(float)));
      squares->Add(layer, n, rope_, queries);
    }
    KVART_RETURN_IF_ERROR(backend_->Attend(shape, q, spans, attended));
    KVART_RETURN_IF_ERROR(backend_->ProjectAdd(*w.attention.out, w.attention.out_bias, n, attended, x));
    KVART_RETURN_IF_ERROR(backend_->GatedMlp(w.mlp, config_.norm_eps, n, x));
  }
  for (size_t i = 0; i < spans.size(); ++i) KVART_RETURN_IF_ERROR(WriteLogits(batch[i], spans[i].first_row));
  for (size_t i = 0; i < spans.size(); ++i) batch[i].sequence->Commit(batch[i].tokens);
  return Status::Ok();
}

Status Decoder::WriteLogits(const DecodeSpan& span, int64_t first_row) {
  if (span.last_logits == nullptr && span.all_logits == nullptr) return Status::Ok();
  const size_t row_bytes = static_cast<size_t>(config_.n_vocab) * sizeof(float);
  const int64_t n = static_cast<int64_t>(span.tokens.size());
  const int64_t most = span.all_logits != nullptr ? std::min(n, kLogitRows) : 1;
  if (logits_.bytes() < static_cast<size_t>(most) * row_bytes) {
    KVART_ASSIGN_OR_RETURN(logits_, Block::Allocate(backend_->memory(), static_cast<size_t>(most) * row_bytes));
  }
  for (int64_t i = span.all_logits != nullptr ? 0 : n - 1; i < n; i += most) {
    const int64_t rows = std::min(most, n - i);
    const Address x = x_.address() + static_cast<Address>((first_row + i) * config_.n_embd) * sizeof(float);
    KVART_RETURN_IF_ERROR(
        backend_->Logits(weights_.final_norm, config_.norm_eps, *weights_.head, rows, x, logits_.address()));
    if (span.all_logits != nullptr) {
      KVART_RETURN_IF_ERROR(backend_->memory().Read(span.all_logits + i * config_.n_vocab, logits_.address(),
                                                    static_cast<size_t>(rows) * row_bytes));
    }
    if (span.last_logits != nullptr && i + rows == n) {
      const Address last = logits_.address() + static_cast<Address>(rows - 1) * row_bytes;
      KVART_RETURN_IF_ERROR(backend_->memory().Read(span.last_logits, last, row_bytes));
    }
  }
  return Status::Ok();
}

}  // namespace kvart

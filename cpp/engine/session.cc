#include <algorithm>
#include <cstring>
#include <utility>

#include "engine/impl.h"

namespace kvart {
namespace {

// A hash over every 61st logit: enough to tell two runs apart, and no cost beside the sampler's own pass.
uint64_t HashLogits(uint64_t hash, const std::vector<float>& logits) {
  for (size_t i = 0; i < logits.size(); i += 61) {
    uint32_t bits;
    std::memcpy(&bits, &logits[i], sizeof bits);
    hash = (hash ^ bits) * 0x100000001b3ull;  // FNV-1a's prime, on words
  }
  return hash;
}

}  // namespace

Session::Session(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}

Session::~Session() {
  if (impl_ == nullptr) return;
  if (impl_->shared().InChild()) {  // the lock may never be free; the memory goes with the process
    (void)impl_.release();
    return;
  }
  const auto lock = impl_->shared().LockToLook();  // pages go back to a pool that others use
  impl_->kv.reset();
  impl_->journal.reset();
}

Result<std::unique_ptr<KvSequence>> Session::Impl::NewSequence() {
  if (options.layout == KvLayout::kContiguous) {
    return NewContiguousSequence(geometry, shared().decoder->backend().memory());
  }
  KVART_ASSIGN_OR_RETURN(const Model::Impl::Cache cache, shared().CacheFor(geometry, options));
  return NewPagedSequence(cache.pool, cache.store, options.window);
}

// Computes K/V of all tokens that have none yet, chunk by chunk, and the logits after the last one. On failure the K/V
// that are there stay.
Status Session::Impl::Compute(const Progress& progress, float* all_logits) {
  Model::Impl& m = shared();
  const AffinityScope scope(m.decoder->backend().caller_cpus());
  if (!options.cache) KVART_RETURN_IF_ERROR(kv->Rewind(0));  // the way to prove the cache: do without
  // Pages that are known already need no computing; the last token's logits always do.
  if (options.cache && all_logits == nullptr) {
    KVART_RETURN_IF_ERROR(m.decoder->SealFullPage(*kv));
    const auto missing = std::span(tokens).subspan(static_cast<size_t>(kv->size()));
    KVART_ASSIGN_OR_RETURN(const int64_t adopted, kv->Adopt(missing.first(missing.size() - 1)));
    stats.reused_positions += static_cast<uint64_t>(adopted);
    m.stats.reused_positions += static_cast<uint64_t>(adopted);
  }
  const int64_t n_vocab = m.info.n_vocab, first = kv->size(), total = static_cast<int64_t>(tokens.size()) - first;
  logits.resize(static_cast<size_t>(n_vocab));
  logits_valid = false;
  const int64_t all_from =
      static_cast<int64_t>(tokens.size()) - total;  // all_logits begins at the first token computed here
  const bool decode = total == 1 || !options.cache;
  const Stopwatch watch;
  uint64_t computed = 0;
  Status status;
  while (status.ok() && kv->size() < static_cast<int64_t>(tokens.size())) {
    status = m.decoder->SealFullPage(*kv);
    if (!status.ok()) break;
    const int64_t pos = kv->size();
    const int64_t n = std::min({static_cast<int64_t>(tokens.size()) - pos, int64_t{options.chunk}, kv->Room()});
    DecodeSpan span;
    span.sequence = kv.get();
    span.tokens = std::span(tokens).subspan(static_cast<size_t>(pos), static_cast<size_t>(n));
    if (pos + n == static_cast<int64_t>(tokens.size())) span.last_logits = logits.data();
    if (all_logits != nullptr) span.all_logits = all_logits + (pos - all_from) * n_vocab;
    status = m.decoder->Forward({&span, 1});
    if (!status.ok()) break;
    computed += static_cast<uint64_t>(n);
    const double done = static_cast<double>(kv->size() - first) / static_cast<double>(total);
    if (progress && !progress(done)) status = Status(StatusCode::kCancelled, "cancelled");
  }
  logits_valid = status.ok();
  const uint64_t again = static_cast<uint64_t>(std::max<int64_t>(0, std::min(computed_high, kv->size()) - first));
  computed_high = std::max(computed_high, kv->size());
  for (Stats* s : {&stats, &m.stats}) {
    (decode ? s->decode_tokens : s->prefill_tokens) += decode ? 1 : computed;
    (decode ? s->decode_seconds : s->prefill_seconds) += watch.seconds();
    s->computed_positions += computed;
    s->recomputed_positions += again;
  }
  return status;
}

Status Session::Impl::CheckUsable() {
  KVART_RETURN_IF_ERROR(shared().CheckProcess());
  return closed ? Status(StatusCode::kInvalidArgument, "the session is closed") : Status::Ok();
}

// Makes logits those after the last token.
Status Session::Impl::ComputeLast() {
  if (tokens.empty()) {
    return Status(StatusCode::kInvalidArgument, "the session is empty: append at least one token before generating");
  }
  if (logits_valid) return Status::Ok();
  const int64_t n = static_cast<int64_t>(tokens.size());
  if (kv->size() == n) KVART_RETURN_IF_ERROR(kv->Rewind(n - 1));  // after a rewind: the last token once more
  return Compute(nullptr, nullptr);
}

Status Session::Append(std::span<const int32_t> ids, const Progress& progress) {
  return AppendLogits(ids, nullptr, progress);
}

Status Session::AppendLogits(std::span<const int32_t> ids, float* out, const Progress& progress) {
  return Guarded([&]() -> Status {
    Impl& s = *impl_;
    KVART_RETURN_IF_ERROR(s.CheckUsable());
    const std::lock_guard lock(s.shared().mutex);
    KVART_RETURN_IF_ERROR(s.DropDraft());
    for (const int32_t id : ids) {
      if (id >= 0 && id < s.shared().info.n_vocab) continue;
      return Errorf(StatusCode::kInvalidArgument, "token id %d is out of range; the vocabulary has 0 … %d", id,
                    s.shared().info.n_vocab - 1);
    }
    if (ids.empty()) return Status::Ok();
    const int64_t before = static_cast<int64_t>(s.tokens.size()), n = static_cast<int64_t>(ids.size());
    if (n > s.ctx - before) {
      return Errorf(StatusCode::kFull,
                    "the context is full: %lld tokens are there and %lld more are given; it holds %lld",
                    static_cast<long long>(before), static_cast<long long>(n), static_cast<long long>(s.ctx));
    }
    if (out != nullptr && s.kv->size() < before)
      KVART_RETURN_IF_ERROR(s.ComputeLast());  // so that out starts at ids[0]
    if (s.journal != nullptr)
      KVART_RETURN_IF_ERROR(s.journal->Append(ids));  // first: what is killed in the middle is not lost
    s.tokens.insert(s.tokens.end(), ids.begin(), ids.end());
    const Status status = s.Compute(progress, out);
    if (!status.ok()) {
      s.tokens.resize(static_cast<size_t>(before));
      if (s.journal != nullptr) KVART_RETURN_IF_ERROR(s.journal->Rewind(static_cast<uint64_t>(before)));
      const Status rewound = s.kv->Rewind(std::min(s.kv->size(), before));
      return rewound.ok() ? status : rewound;
    }
    return Status::Ok();
  });
}

Result<int32_t> Session::Next(Sampler& sampler) {
  return Guarded([&]() -> Result<int32_t> {
    Impl& s = *impl_;
    KVART_RETURN_IF_ERROR(s.CheckUsable());
    const std::lock_guard lock(s.shared().mutex);
    if (static_cast<int64_t>(s.tokens.size()) >= s.ctx) {
      return Errorf(StatusCode::kFull, "the context is full: it holds %lld tokens", static_cast<long long>(s.ctx));
    }
    KVART_RETURN_IF_ERROR(s.ComputeLastAndDraft());
    const int32_t id = sampler.Sample(s.logits, s.tokens);
    if (s.journal != nullptr) KVART_RETURN_IF_ERROR(s.journal->Append({&id, 1}));  // before anybody sees it
    s.stats.logits_hash = HashLogits(s.stats.logits_hash, s.logits);
    s.tokens.push_back(id);
    KVART_RETURN_IF_ERROR(s.TakeFromDraft());
    return id;
  });
}

Status Session::LastLogits(float* out) {
  return Guarded([&]() -> Status {
    Impl& s = *impl_;
    KVART_RETURN_IF_ERROR(s.CheckUsable());
    const std::lock_guard lock(s.shared().mutex);
    KVART_RETURN_IF_ERROR(s.ComputeLast());
    std::copy(s.logits.begin(), s.logits.end(), out);
    return Status::Ok();
  });
}

Status Session::Rewind(int64_t n_tokens) {
  return Guarded([&]() -> Status {
    Impl& s = *impl_;
    KVART_RETURN_IF_ERROR(s.CheckUsable());
    const std::lock_guard lock(s.shared().mutex);
    KVART_RETURN_IF_ERROR(s.DropDraft());
    const int64_t size = static_cast<int64_t>(s.tokens.size());
    if (n_tokens < 0 || n_tokens > size) {
      return Errorf(StatusCode::kInvalidArgument, "cannot rewind to %lld tokens; the session has %lld",
                    static_cast<long long>(n_tokens), static_cast<long long>(size));
    }
    if (n_tokens == size) return Status::Ok();
    if (s.journal != nullptr) KVART_RETURN_IF_ERROR(s.journal->Rewind(static_cast<uint64_t>(n_tokens)));
    KVART_RETURN_IF_ERROR(s.kv->Rewind(std::min(n_tokens, s.kv->size())));
    s.tokens.resize(static_cast<size_t>(n_tokens));
    s.logits_valid = false;
    return Status::Ok();
  });
}

Result<std::unique_ptr<Session>> Session::Fork() {
  return Guarded([&]() -> Result<std::unique_ptr<Session>> {
    Impl& s = *impl_;
    KVART_RETURN_IF_ERROR(s.CheckUsable());
    auto fork = std::make_unique<Impl>();
    const std::lock_guard lock(s.shared().mutex);
    KVART_RETURN_IF_ERROR(s.DropDraft());
    KVART_RETURN_IF_ERROR(s.DropDraft());
    fork->model = s.model;
    fork->options = s.options;
    fork->options.name.clear();  // the name stays with the original
    fork->geometry = s.geometry;
    fork->ctx = s.ctx;
    fork->tokens = s.tokens;
    KVART_ASSIGN_OR_RETURN(fork->kv, s.kv->Fork());
    fork->logits = s.logits;
    fork->logits_valid = s.logits_valid;
    fork->computed_high = s.computed_high;
    return std::make_unique<Session>(std::move(fork));
  });
}

// These three cannot fail; in a child of fork(), where the lock may be held by a thread that is not there, they are
// empty.
std::vector<int32_t> Session::tokens() const {
  if (impl_->shared().InChild()) return {};
  const auto lock = impl_->shared().LockToLook();
  return impl_->tokens;
}
int64_t Session::size() const {
  if (impl_->shared().InChild()) return 0;
  const auto lock = impl_->shared().LockToLook();
  return static_cast<int64_t>(impl_->tokens.size());
}
int64_t Session::ctx() const {
  return impl_->ctx;
}
const SessionOptions& Session::options() const {
  return impl_->options;
}

Stats Session::stats() const {
  if (impl_->shared().InChild()) return {};
  const auto lock = impl_->shared().LockToLook();
  Stats stats = impl_->stats;
  stats.kv_bytes = impl_->kv->held_bytes();
  const KvGeometry& g = impl_->geometry;
  const KvOffsets floats(g, g.page_tokens);
  stats.kv_used_bytes = stats.kv_bytes;
  stats.bits_per_value =
      8.0 * static_cast<double>(floats.token_bytes()) / (2.0 * g.n_layers * g.n_kv_heads * g.head_dim);
  if (g.seals()) {
    const auto cache = impl_->shared().CacheFor(g, impl_->options);
    const double values = 2.0 * g.n_layers * g.n_kv_heads * g.head_dim * g.page_tokens;
    if (cache.ok()) stats.bits_per_value = 8.0 * static_cast<double>(cache->store->stats().slot_bytes) / values;
  }
  return stats;
}

}  // namespace kvart

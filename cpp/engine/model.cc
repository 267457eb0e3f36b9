#include <unistd.h>

#include <algorithm>
#include <utility>

#include "engine/impl.h"

namespace kvart {
namespace {

std::string NameOf(const GgufFile& file) {
  if (const auto name = file.GetString("general.name"); name.ok()) return *name;
  const size_t slash = file.path().find_last_of('/');
  return slash == std::string::npos ? file.path() : file.path().substr(slash + 1);
}

Status CheckVocabulary(const GgufFile& file, const Tokenizer& tokenizer, const ModelConfig& config) {
  if (tokenizer.n_vocab() <= config.n_vocab) return Status::Ok();
  return Errorf(StatusCode::kCorrupt,
                "%s: the tokenizer has %d tokens, the embedding table %d rows; at least as many rows are wanted",
                file.path().c_str(), tokenizer.n_vocab(), config.n_vocab);
}

}  // namespace

Model::Model() : impl_(std::make_unique<Impl>()) {}
Model::~Model() = default;

const ModelInfo& Model::info() const {
  return impl_->info;
}
const Tokenizer& Model::tokenizer() const {
  return *impl_->tokenizer;
}
const GgufFile& Model::file() const {
  return *impl_->file;
}

Stats Model::stats() const {
  if (impl_->InChild()) return {};
  const auto lock = impl_->LockToLook();
  Stats stats = impl_->stats;
  for (const Impl::Cache& cache : impl_->caches) {
    stats.kv_bytes += cache.pool->bytes_in_use();
    stats.pool_requests += cache.pool->allocations();
    stats.pool_hits += cache.pool->reuses();
    if (cache.store == nullptr) continue;
    const StoreStats store = cache.store->stats();
    stats.kv_bytes += store.slots_in_use * store.slot_bytes;
    stats.store_lookups += store.lookups;
    stats.store_hits += store.hits;
    stats.pool_requests += store.puts;
    stats.pool_hits += store.pool_hits;
    stats.evictions += store.evictions;
    stats.damaged_pages += store.damaged;
    stats.store_writable = stats.store_writable && store.writable;
  }
  stats.kv_budget_bytes = impl_->options.kv_budget_bytes;
  return stats;
}

std::vector<InputSquares> Model::input_squares() const {
  if (impl_->InChild()) return {};
  const auto lock = impl_->LockToLook();
  return impl_->decoder->backend().input_squares();
}

Result<std::shared_ptr<Model>> Model::Load(const std::string& path, const LoadOptions& options) {
  return Guarded([&]() -> Result<std::shared_ptr<Model>> {
    const Stopwatch watch;
    std::shared_ptr<Model> model(new Model());
    Impl& impl = *model->impl_;
    impl.process = getpid();
    impl.options = options;
    impl.options.progress = nullptr;
    KVART_ASSIGN_OR_RETURN(impl.file, GgufFile::Open(path));
    KVART_ASSIGN_OR_RETURN(impl.tokenizer, Tokenizer::FromGguf(*impl.file));
    KVART_ASSIGN_OR_RETURN(std::unique_ptr<Backend> backend,
                           NewBackend(options.backend, {options.n_threads, options.float_activations, options.cpus,
                                                        options.record_inputs}));
    const AffinityScope scope(backend->caller_cpus());
    KVART_ASSIGN_OR_RETURN(impl.decoder, Decoder::Load(*impl.file, std::move(backend), options.progress));
    const ModelConfig& config = impl.decoder->config();
    KVART_RETURN_IF_ERROR(CheckVocabulary(*impl.file, *impl.tokenizer, config));

    ModelInfo& info = impl.info;
    info.name = NameOf(*impl.file);
    info.architecture = config.architecture;
    info.path = path;
    info.file_bytes = impl.file->file_bytes();
    info.n_layers = config.n_layers;
    info.n_embd = config.n_embd;
    info.n_heads = config.n_heads;
    info.n_kv_heads = config.n_kv_heads;
    info.head_dim = config.head_dim;
    info.n_ff = config.n_ff;
    info.n_vocab = config.n_vocab;
    info.n_ctx_train = config.n_ctx_train;
    info.rope_base = config.rope.base;
    info.rope_scaling = RopeScalingName(config.rope.scaling);
    info.tied_head = impl.decoder->weights().tied_head;
    info.weight_bytes_per_token = impl.decoder->weights().BytesPerToken();
    info.kernels = impl.decoder->backend().kernels();
    info.backend = impl.decoder->backend().name();
    info.n_threads = impl.decoder->backend().n_threads();
    info.n_running = impl.decoder->backend().n_running();
    impl.stats.load_seconds = watch.seconds();
    return model;
  });
}

bool Model::Impl::InChild() const {
  return process != getpid();
}

Status Model::Impl::CheckProcess() const {
  if (InChild()) {
    return Status(StatusCode::kInvalidArgument,
                  "this model was loaded before a fork(): its threads are not in this process; load it again here");
  }
  if (mutex.mine()) {
    return Status(StatusCode::kBusy,
                  "the model is in the middle of a call that this code runs inside of, as a progress callback does");
  }
  return Status::Ok();
}

std::string Model::Impl::Numerics(const KvGeometry& geometry, int64_t window) const {
  return DescribeNumerics(decoder->config(), options.float_activations, geometry, window);
}

Result<Digest> Model::Impl::FingerprintOf(const KvGeometry& geometry, int64_t window) {
  KVART_ASSIGN_OR_RETURN(const Digest weights, WeightsHash());
  return Fingerprint(weights, Numerics(geometry, window));
}

Result<Digest> Model::Impl::WeightsHash() {
  if (!weights_hash) {
    KVART_ASSIGN_OR_RETURN(weights_hash, HashWeights(*file, options.kv_dir));
  }
  return *weights_hash;
}

Result<std::shared_ptr<PageStore>> Model::Impl::NewStore(const KvGeometry& geometry, const Digest& fingerprint,
                                                         bool in_memory) const {
  StoreOptions store;
  store.budget_bytes = options.kv_budget_bytes;
  store.payload_bytes = SealedOffsets(geometry).bytes();
  store.k_format = ToString(geometry.formats.k, true);
  store.v_format = ToString(geometry.formats.v, false);
  store.sinks = geometry.sinks;
  store.fingerprint = fingerprint;
  if (in_memory && store.budget_bytes == 0) {
    store.budget_bytes =
        static_cast<uint64_t>(sysconf(_SC_PHYS_PAGES)) * static_cast<uint64_t>(sysconf(_SC_PAGESIZE)) / 2;
  }
  return in_memory ? PageStore::InMemory(geometry, store) : PageStore::Open(options.kv_dir, geometry, store);
}

Result<Model::Impl::Cache> Model::Impl::CacheFor(const KvGeometry& geometry, const SessionOptions& session) {
  const int64_t window = session.window;
  const bool in_memory = options.kv_dir.empty() || session.in_memory;
  for (const Cache& cache : caches) {
    if (cache.pool->geometry() == geometry && cache.window == window && cache.in_memory == in_memory) return cache;
  }
  Cache cache;
  cache.window = window;
  cache.in_memory = in_memory;
  KVART_ASSIGN_OR_RETURN(cache.pool, PagePool::New(geometry, decoder->backend().memory()));
  if (!in_memory) {
    KVART_ASSIGN_OR_RETURN(cache.fingerprint, FingerprintOf(geometry, window));
  }
  if (geometry.seals()) {
    KVART_ASSIGN_OR_RETURN(cache.store, NewStore(geometry, cache.fingerprint, in_memory));
  }
  caches.push_back(cache);
  return cache;
}

Result<std::unique_ptr<Session>> Model::NewSession(const SessionOptions& options) {
  return Guarded([&]() -> Result<std::unique_ptr<Session>> {
    KVART_RETURN_IF_ERROR(impl_->CheckProcess());
    auto session = std::make_unique<Session::Impl>();
    session->model = shared_from_this();
    session->options = options;
    KVART_ASSIGN_OR_RETURN(const KvFormats formats, ParseKvFormats(options.k_format, options.v_format));
    session->geometry = impl_->decoder->Geometry(formats, options.sinks);
    KVART_RETURN_IF_ERROR(CheckGeometry(session->geometry));
    if (options.chunk < 1 || options.chunk > 65536) {
      return Errorf(StatusCode::kInvalidArgument, "chunk: found %d, wanted 1 … 65536 tokens", options.chunk);
    }
    constexpr int64_t kMaxCtx = int64_t{1} << 31;
    if (options.ctx < 0 || options.ctx > kMaxCtx) {
      return Errorf(StatusCode::kInvalidArgument,
                    "ctx: found %lld, wanted 1 … %lld tokens, or 0 for the trained length",
                    static_cast<long long>(options.ctx), static_cast<long long>(kMaxCtx));
    }
    session->ctx = options.ctx > 0 ? options.ctx : impl_->info.n_ctx_train;
    if (options.window > 0) session->ctx = kMaxCtx;  // what leaves the window makes room
    if (!options.name.empty() && impl_->options.kv_dir.empty()) {
      return Status(StatusCode::kInvalidArgument,
                    "session '" + options.name.substr(0, 64) + "': a name needs a kv_dir to keep it in");
    }
    if (!options.name.empty() && !options.cache) {
      return Status(StatusCode::kInvalidArgument,
                    "session '" + options.name.substr(0, 64) + "': a durable session cannot do without its cache");
    }
    const std::lock_guard lock(impl_->mutex);
    KVART_ASSIGN_OR_RETURN(session->kv, session->NewSequence());
    if (!options.name.empty()) KVART_RETURN_IF_ERROR(session->Resume());
    return std::make_unique<Session>(std::move(session));
  });
}

Status Model::Logits(std::span<const int32_t> ids, const SessionOptions& options, float* out,
                     const Progress& progress) {
  KVART_ASSIGN_OR_RETURN(std::unique_ptr<Session> session, NewSession(options));
  return session->AppendLogits(ids, out, progress);
}

}  // namespace kvart

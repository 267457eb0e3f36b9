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
  return Errorf(StatusCode::kCorrupt, "%s: the tokenizer has %d tokens, the embedding table %d rows; at least as many rows are wanted",
                file.path().c_str(), tokenizer.n_vocab(), config.n_vocab);
}

}  // namespace

Model::Model() : impl_(std::make_unique<Impl>()) {}
Model::~Model() = default;

const ModelInfo& Model::info() const { return impl_->info; }
const Tokenizer& Model::tokenizer() const { return *impl_->tokenizer; }
const GgufFile& Model::file() const { return *impl_->file; }

Stats Model::stats() const {
  if (!impl_->CheckProcess().ok()) return {};
  const std::lock_guard lock(impl_->mutex);
  Stats stats = impl_->stats;
  for (const Impl::Cache& cache : impl_->caches) {
    stats.kv_bytes += cache.pool->pages_in_use() * cache.pool->layout().bytes();
    if (cache.store != nullptr) stats.kv_bytes += cache.store->stats().slots_in_use * cache.store->stats().slot_bytes;
  }
  return stats;
}

Result<std::shared_ptr<Model>> Model::Load(const std::string& path, const LoadOptions& options) {
  return Guarded([&]() -> Result<std::shared_ptr<Model>> {
    const Stopwatch watch;
    std::shared_ptr<Model> model(new Model());
    Impl& impl = *model->impl_;
    impl.process = getpid();
    KVART_ASSIGN_OR_RETURN(impl.file, GgufFile::Open(path));
    KVART_ASSIGN_OR_RETURN(impl.tokenizer, Tokenizer::FromGguf(*impl.file));
    KVART_ASSIGN_OR_RETURN(std::unique_ptr<Backend> backend,
                           NewBackend(options.backend, {options.n_threads, options.float_activations}));
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
    impl.stats.load_seconds = watch.seconds();
    return model;
  });
}

Status Model::Impl::CheckProcess() const {
  if (process == getpid()) return Status::Ok();
  return Status(StatusCode::kInvalidArgument,
                "this model was loaded before a fork(): its threads are not in this process; load it again here");
}

Result<Model::Impl::Cache> Model::Impl::CacheFor(const KvGeometry& geometry) {
  for (const Cache& cache : caches) {
    if (cache.pool->geometry() == geometry) return cache;
  }
  Cache cache;
  KVART_ASSIGN_OR_RETURN(cache.pool, PagePool::New(geometry, decoder->backend().memory()));
  if (geometry.seals()) {
    StoreOptions options;
    options.payload_bytes = SealedOffsets(geometry).bytes();
    options.k_format = ToString(geometry.formats.k, true);
    options.v_format = ToString(geometry.formats.v, false);
    options.sinks = geometry.sinks;
    KVART_ASSIGN_OR_RETURN(cache.store, PageStore::InMemory(geometry, options));
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
      return Errorf(StatusCode::kInvalidArgument, "ctx: found %lld, wanted 1 … %lld tokens, or 0 for the trained length",
                    static_cast<long long>(options.ctx), static_cast<long long>(kMaxCtx));
    }
    session->ctx = options.ctx > 0 ? options.ctx : impl_->info.n_ctx_train;
    const std::lock_guard lock(impl_->mutex);
    KVART_ASSIGN_OR_RETURN(session->kv, session->NewSequence());
    return std::make_unique<Session>(std::move(session));
  });
}

Status Model::Logits(std::span<const int32_t> ids, const SessionOptions& options, float* out, const Progress& progress) {
  KVART_ASSIGN_OR_RETURN(std::unique_ptr<Session> session, NewSession(options));
  return session->AppendLogits(ids, out, progress);
}

}  // namespace kvart

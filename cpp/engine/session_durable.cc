// Sessions that outlive the process, and K/V in and out: resume, close, save, load, export, import.
#include <algorithm>
#include <utility>

#include "base/hash.h"
#include "engine/impl.h"

namespace kvart {

StoreIdentity Session::Impl::Identity(const Digest& fingerprint) const {
  return {fingerprint, ToString(geometry.formats.k, true), ToString(geometry.formats.v, false)};
}

// Reads the journal and takes up what K/V there are; the rest is computed by whatever call comes next.
Status Session::Impl::Resume() {
  KVART_ASSIGN_OR_RETURN(const Model::Impl::Cache cache, shared().CacheFor(geometry, options));
  JournalOptions wanted;
  wanted.store = Identity(cache.fingerprint);
  Replay replay;
  KVART_ASSIGN_OR_RETURN(journal, Journal::Open(shared().options.kv_dir + "/sessions", options.name, wanted, &replay));
  for (const int32_t id : replay.ids) {
    if (id >= 0 && id < shared().info.n_vocab) continue;
    return Errorf(StatusCode::kUnsupported,
                  "session '%s' holds token id %d; this model's vocabulary has 0 … %d: it is another model's",
                  options.name.c_str(), id, shared().info.n_vocab - 1);
  }
  if (static_cast<int64_t>(replay.ids.size()) > ctx) {
    return Errorf(StatusCode::kFull, "session '%s' holds %zu tokens; the context holds %lld: ask for more with ctx",
                  options.name.c_str(), replay.ids.size(), static_cast<long long>(ctx));
  }
  tokens = std::move(replay.ids);
  resumed.existed = !replay.created;
  resumed.tokens = static_cast<int64_t>(tokens.size());
  if (!tokens.empty()) {
    KVART_ASSIGN_OR_RETURN(resumed.from_pages, kv->Adopt(std::span(tokens).first(tokens.size() - 1)));
  }
  const std::span<const int32_t> rest = std::span(tokens).subspan(static_cast<size_t>(kv->size()));
  if (replay.open_page && replay.open_page->first == static_cast<uint64_t>(kv->size()) &&
      replay.open_page->tokens > 0 && replay.open_page->tokens <= rest.size()) {
    const auto ids = rest.first(static_cast<size_t>(replay.open_page->tokens));
    KvPieces pieces;
    pieces.open = std::move(replay.open_page->bytes);
    pieces.open_tokens = static_cast<int64_t>(ids.size());
    if (kv->Restore(ids, pieces).ok()) resumed.from_open_page = pieces.open_tokens;
  }
  resumed.to_compute = resumed.tokens - kv->size();
  computed_high = resumed.tokens;
  stats.reused_positions += static_cast<uint64_t>(kv->size());
  if (resumed.existed && replay.store != wanted.store) {
    resumed.note =
        "its K/V were made with another model, other numerics or another format (k=" + replay.store.k_format +
        ", v=" + replay.store.v_format + "; now k=" + wanted.store.k_format + ", v=" + wanted.store.v_format +
        "): the text is computed again from its token ids";
  } else if (replay.cut_bytes > 0) {
    resumed.note =
        "the last " + std::to_string(replay.cut_bytes) +
        (replay.damaged
             ? " bytes of the journal are damaged: they are left out, and saved beside it with the first change"
             : " bytes of the journal were not finished when its writer stopped: they are left out");
  }
  return Status::Ok();
}

Status Session::Close() {
  return Guarded([&]() -> Status {
    Impl& s = *impl_;
    KVART_RETURN_IF_ERROR(s.shared().CheckProcess());
    const std::lock_guard lock(s.shared().mutex);
    if (s.closed) return Status::Ok();
    KVART_RETURN_IF_ERROR(s.DropDraft());
    Status status;
    if (s.journal != nullptr && s.geometry.seals()) {
      if (s.kv->size() < static_cast<int64_t>(s.tokens.size()) && !s.tokens.empty()) status = s.ComputeLast();
      if (auto pieces = s.kv->Export(); status.ok() && pieces.ok() && pieces->open_tokens > 0) {
        OpenPage page;
        page.first = static_cast<uint64_t>(s.kv->size() - pieces->open_tokens);
        page.tokens = static_cast<uint64_t>(pieces->open_tokens);
        page.bytes = std::move(pieces->open);
        status = s.journal->WriteOpenPage(page);
      }
    }
    if (s.journal != nullptr && status.ok()) status = s.journal->Sync();
    s.journal.reset();
    s.closed = true;
    return status;
  });
}

const Resumed& Session::resumed() const {
  return impl_->resumed;
}

Status Session::ImportKv(std::span<const int32_t> ids, std::span<const std::vector<float>> k,
                         std::span<const std::vector<float>> v) {
  return Guarded([&]() -> Status {
    Impl& s = *impl_;
    KVART_RETURN_IF_ERROR(s.CheckUsable());
    const std::lock_guard lock(s.shared().mutex);
    KVART_RETURN_IF_ERROR(s.DropDraft());
    const KvGeometry& g = s.geometry;
    if (g.seals()) {
      return Status(StatusCode::kUnsupported,
                    "K/V can be imported into f32 or f16 only: pages in integers follow from their tokens; found " +
                        g.ToString());
    }
    if (s.journal != nullptr) {
      return Status(StatusCode::kUnsupported, "K/V cannot be imported into the durable session '" + s.options.name +
                                                  "': its file keeps token ids, from which other K/V would follow");
    }
    const int64_t n = static_cast<int64_t>(ids.size());
    const size_t size = static_cast<size_t>(n * g.n_kv_heads * g.head_dim);
    if (k.size() != static_cast<size_t>(g.n_layers) || v.size() != k.size()) {
      return Errorf(StatusCode::kInvalidArgument, "K/V of %zu and %zu layers; the model has %d", k.size(), v.size(),
                    g.n_layers);
    }
    for (size_t layer = 0; layer < k.size(); ++layer) {
      if (k[layer].size() == size && v[layer].size() == size) continue;
      return Errorf(StatusCode::kInvalidArgument,
                    "layer %zu has %zu keys and %zu values; (%d, %lld, %d) of each are wanted", layer, k[layer].size(),
                    v[layer].size(), g.n_kv_heads, static_cast<long long>(n), g.head_dim);
    }
    for (const int32_t id : ids) {
      if (id < 0 || id >= s.shared().info.n_vocab)
        return Errorf(StatusCode::kInvalidArgument, "token id %d is out of range", id);
    }
    if (n > s.ctx)
      return Errorf(StatusCode::kFull, "%lld tokens; the context holds %lld", static_cast<long long>(n),
                    static_cast<long long>(s.ctx));
    KVART_ASSIGN_OR_RETURN(std::unique_ptr<KvSequence> kv, s.NewSequence());
    KVART_RETURN_IF_ERROR(kv->Reserve(n));
    Memory& memory = s.shared().decoder->backend().memory();
    std::vector<float> rows;
    std::vector<uint8_t> block_bytes;
    for (int layer = 0; layer < g.n_layers; ++layer) {
      for (const KvView::Run& run : kv->View(layer, n).runs) {
        const int64_t count = std::min<int64_t>(run.n, n - run.pos);
        for (int head = 0; head < g.n_kv_heads; ++head) {
          for (const bool keys : {true, false}) {
            const std::vector<float>& from = (keys ? k : v)[static_cast<size_t>(layer)];
            const auto begin = from.begin() + (head * n + run.pos) * g.head_dim;
            // No more than the tokens' own tiles: an open page has room for fewer than a whole one.
            const int tokens = static_cast<int>((count + kTileTokens - 1) / kTileTokens * kTileTokens);
            rows.assign(static_cast<size_t>(tokens * g.head_dim), 0.0f);
            std::copy(begin, begin + count * g.head_dim, rows.begin());
            const KvBlock block(keys ? g.formats.k : g.formats.v, keys, tokens, g.head_dim);
            block_bytes.resize(block.bytes());
            block.Place(rows.data(), block_bytes.data());
            const Address to = (keys ? run.k : run.v) + static_cast<Address>(head * run.head_stride);
            KVART_RETURN_IF_ERROR(memory.Write(to, block_bytes.data(), block_bytes.size()));
          }
        }
      }
    }
    kv->Commit(ids);
    s.kv = std::move(kv);
    s.tokens.assign(ids.begin(), ids.end());
    s.logits_valid = false;
    return Status::Ok();
  });
}

Status Session::ReadRawPage(int64_t page, int layer, std::vector<uint8_t>* bytes, std::vector<uint8_t>* fine) {
  return Guarded([&]() -> Status {
    Impl& s = *impl_;
    KVART_RETURN_IF_ERROR(s.CheckUsable());
    const std::lock_guard lock(s.shared().mutex);
    KVART_RETURN_IF_ERROR(s.DropDraft());
    const KvGeometry& g = s.geometry;
    if (layer < 0 || layer >= g.n_layers) {
      return Errorf(StatusCode::kInvalidArgument, "layer %d is out of range; the model has 0 … %d", layer,
                    g.n_layers - 1);
    }
    const SealedOffsets offsets(g);
    for (const KvView::Run& run : s.kv->View(layer, s.kv->size()).runs) {
      if (!run.sealed || run.pos != page * g.page_tokens) continue;
      bytes->resize(static_cast<size_t>(offsets.head_bytes() * g.n_kv_heads));
      fine->resize(offsets.fine().bytes());
      const Memory& memory = s.shared().decoder->backend().memory();
      KVART_RETURN_IF_ERROR(memory.Read(fine->data(), run.fine, fine->size()));
      return memory.Read(bytes->data(), run.k, bytes->size());
    }
    return Errorf(StatusCode::kNotFound, "page %lld is not sealed; the session has %lld tokens in pages of %d",
                  static_cast<long long>(page), static_cast<long long>(s.kv->size()), g.page_tokens);
  });
}

Status Session::ReadKv(int layer, std::vector<float>* k, std::vector<float>* v) {
  return Guarded([&]() -> Status {
    Impl& s = *impl_;
    KVART_RETURN_IF_ERROR(s.CheckUsable());
    const std::lock_guard lock(s.shared().mutex);
    KVART_RETURN_IF_ERROR(s.DropDraft());
    const KvGeometry& g = s.geometry;
    if (layer < 0 || layer >= g.n_layers) {
      return Errorf(StatusCode::kInvalidArgument, "layer %d is out of range; the model has 0 … %d", layer,
                    g.n_layers - 1);
    }
    const int64_t n = static_cast<int64_t>(s.tokens.size());
    if (s.kv->size() < n) KVART_RETURN_IF_ERROR(s.ComputeLast());

    const KvView view = s.kv->View(layer, n);
    const Memory& memory = s.shared().decoder->backend().memory();
    const SealedOffsets sealed(g);
    const KvFine& fine = sealed.fine();
    std::vector<uint8_t> raw, section;
    std::vector<float> rows;
    // One head's rows of one run into their places.
    const auto read = [&](const KvView::Run& run, int head, bool keys, std::vector<float>* out) -> Status {
      const KvFormat open{keys ? g.open_k() : g.open_v()};
      const int capacity = (run.n + kTileTokens - 1) / kTileTokens * kTileTokens;
      const KvBlock block(run.sealed ? (keys ? g.formats.k : g.formats.v) : open, keys, capacity, g.head_dim);
      raw.resize(block.bytes());
      rows.resize(static_cast<size_t>(capacity * g.head_dim));
      const Address from = (keys ? run.k : run.v) + static_cast<Address>(head * run.head_stride);
      KVART_RETURN_IF_ERROR(memory.Read(raw.data(), from, raw.size()));
      block.Decode(raw.data(), rows.data());
      if (keys && run.sealed && fine.rows() > 0) {
        section.resize(fine.bytes());
        KVART_RETURN_IF_ERROR(memory.Read(section.data(), run.fine, section.size()));
        fine.AddTo(block, raw.data(), layer * g.n_kv_heads + head, section.data(), rows.data());
      }
      const int64_t end = std::min<int64_t>(run.n, n - run.pos);
      std::copy(rows.begin() + run.first * g.head_dim, rows.begin() + end * g.head_dim,
                out->begin() + (head * n + run.pos + run.first) * g.head_dim);
      return Status::Ok();
    };
    for (std::vector<float>* out : {k, v}) out->resize(static_cast<size_t>(n * g.n_kv_heads * g.head_dim));
    for (const KvView::Run& run : view.runs) {
      for (int head = 0; head < g.n_kv_heads; ++head) {
        KVART_RETURN_IF_ERROR(read(run, head, true, k));
        KVART_RETURN_IF_ERROR(read(run, head, false, v));
      }
    }
    return Status::Ok();
  });
}

}  // namespace kvart

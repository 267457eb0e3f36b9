// One text's K/V: reserve room, let the backend fill it, commit; look at it through views; seal, adopt, rewind, fork.
// May depend on: base, quant, layout, pool, store. Next for the token: backend/ appends to a view and attends over it.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "base/memory.h"
#include "base/status.h"
#include "kvcache/layout.h"
#include "kvcache/pool.h"
#include "kvcache/store.h"

namespace kvart {

// Where one layer's K/V lie: runs of tokens, in order of position. A token sees the runs before it and, of its own,
// what is not behind it.
struct KvView {
  struct Run {
    Address k = 0,
            v = 0;  // KV head 0: float (tokens / 8, head_dim, 8) and (tokens, head_dim), or KvBlocks of a sealed page
    int64_t head_stride = 0;  // bytes from one KV head to the next, for keys and values alike
    int64_t pos = 0;          // of its first token
    int32_t n = 0;            // tokens
    int32_t first = 0;        // tokens before this one are not to be read here: sinks, which have a run of their own
    bool sealed = false;
    Address fine = 0;  // of a sealed page: its fine rows, KvFine of all layers
    bool turned =
        false;  // the query is turned back by `dropped` positions first, as if what was dropped had never been
  };
  KvGeometry geometry;
  int layer = 0;
  std::vector<Run> runs;
  int64_t dropped = 0;  // tokens between the sinks and the window that are gone
};

// All K/V of a sequence as bytes, to be kept elsewhere. Views live as long as the sequence is not changed.
struct KvPieces {
  std::vector<std::span<const uint8_t>>
      sealed;                  // payloads, SealedOffsets(geometry); empty spans for pages that a window dropped
  std::vector<uint8_t> sinks;  // KvOffsets(geometry, tiles of the sinks), when pages are sealed
  std::vector<uint8_t> open;   // KvOffsets(geometry, tiles of open_tokens)
  int64_t open_tokens = 0;     // behind the sealed pages
};

// The interface that all layouts and formats share. Not thread-safe: the engine's lock covers it. The Memory must
// outlive it.
class KvSequence {
 public:
  virtual ~KvSequence() = default;

  const KvGeometry& geometry() const { return geometry_; }
  int64_t size() const { return static_cast<int64_t>(ids_.size()); }  // tokens whose K/V are there
  std::span<const int32_t> ids() const { return ids_; }

  // How many tokens may be appended at once: where pages are sealed, no further than the end of the open page.
  virtual int64_t Room() const = 0;
  // Makes room for n <= Room() more tokens behind size() that nobody else sees. Strong: on failure nothing has changed.
  virtual Status Reserve(int64_t n) = 0;
  // Where the first n_tokens of a layer lie: up to size(), or up to what is reserved.
  virtual KvView View(int layer, int64_t n_tokens) const = 0;
  // The reserved tokens are there now.
  void Commit(std::span<const int32_t> ids) { ids_.insert(ids_.end(), ids.begin(), ids.end()); }

  // The open page when it is full and waits to be sealed, 0 otherwise; laid out as KvOffsets(geometry, page_tokens).
  virtual Address FullPage() const { return 0; }
  // Its payload, laid out as SealedOffsets(geometry): the page is sealed from now on.
  virtual Status Seal(std::span<const uint8_t> payload) {
    return Status(StatusCode::kInternal, "this layout seals no pages");
  }
  // Takes over pages that are known already and whose ids come next in ids; only at the end of a sealed page. Returns
  // how many tokens.
  virtual Result<int64_t> Adopt(std::span<const int32_t> ids) { return int64_t{0}; }

  // What has to hold before each pass over the pages: kCorrupt when a file was made shorter under us.
  virtual Status Check() const { return Status::Ok(); }

  virtual Result<KvPieces> Export() const {
    return Status(StatusCode::kUnsupported, "this layout keeps its K/V to itself");
  }
  // Pieces that Export gave, for the tokens that come next; only where no page is open. kCorrupt when sizes do not fit;
  // what was taken over until then stays.
  virtual Status Restore(std::span<const int32_t> ids, const KvPieces& pieces) { return Export().status(); }

  // Keeps the first n_tokens, which is at most size(), or less: size() then tells how many are left, and the rest, less
  // than a page, is to be computed again from its ids. Room that is not needed any more is given back.
  virtual Status Rewind(int64_t n_tokens) = 0;
  // An independent copy; what can be shared is.
  virtual Result<std::unique_ptr<KvSequence>> Fork() const = 0;
  // Memory that this sequence holds; a page shared by n sequences counts for each.
  virtual uint64_t held_bytes() const = 0;

 protected:
  explicit KvSequence(const KvGeometry& geometry) : geometry_(geometry) {}
  KvGeometry geometry_;
  std::vector<int32_t> ids_;
};

// Pages behind a page table: the default. Open pages come from the pool, sealed ones (store: only where the geometry
// seals) from the store. Full pages and forked ones are shared; a shared page is copied before it is written to. window
// > 0 (only where the geometry seals): a token sees the sinks, its own page, and so many whole pages before that as the
// window needs; what lies between is dropped.
Result<std::unique_ptr<KvSequence>> NewPagedSequence(std::shared_ptr<PagePool> pool, std::shared_ptr<PageStore> store,
                                                     int64_t window);

// One run of memory that doubles when full: simple, and the reference that other layouts are tested against. Floats
// only.
Result<std::unique_ptr<KvSequence>> NewContiguousSequence(const KvGeometry& geometry, Memory& memory);

}  // namespace kvart

// One text's K/V: reserve room, let the backend fill it, commit; look at it through views; rewind, fork.
// May depend on: base, quant, layout. Next for the token: backend/ appends to a view and attends over it.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "base/memory.h"
#include "base/status.h"
#include "kvcache/layout.h"
#include "kvcache/pool.h"

namespace kvart {

// Where one layer's pages lie. Page i holds tokens i * page_tokens …; the last one may be part full.
struct KvView {
  struct Page {
    Address k;  // KV head 0: (page_tokens / 8, head_dim, 8)
    Address v;  // KV head 0: (page_tokens, head_dim)
  };
  KvGeometry geometry;
  std::vector<Page> pages;
  int64_t head_stride = 0;  // bytes from one KV head to the next, for keys and values alike
};

// The interface that all layouts and formats share. Not thread-safe: the engine's lock covers it. The Memory must outlive it.
class KvSequence {
 public:
  virtual ~KvSequence() = default;

  const KvGeometry& geometry() const { return geometry_; }
  int64_t size() const { return size_; }  // tokens whose K/V are there

  // Makes room for n more tokens behind size() that nobody else sees. Strong: on failure nothing has changed.
  virtual Status Reserve(int64_t n) = 0;
  // Where the first n_tokens of a layer lie: up to size(), or up to what is reserved.
  virtual KvView View(int layer, int64_t n_tokens) const = 0;
  // The n reserved tokens are there now.
  void Commit(int64_t n) { size_ += n; }
  // Keeps the first n_tokens, which is at most size(); room that is not needed any more is given back.
  virtual Status Rewind(int64_t n_tokens) = 0;
  // An independent copy; what can be shared is.
  virtual Result<std::unique_ptr<KvSequence>> Fork() const = 0;
  // Memory that this sequence holds; a page shared by n sequences counts for each.
  virtual uint64_t held_bytes() const = 0;

 protected:
  explicit KvSequence(const KvGeometry& geometry) : geometry_(geometry) {}
  KvGeometry geometry_;
  int64_t size_ = 0;
};

// Pages from a pool behind a page table: the default. Full pages and forked ones are shared; a shared page is copied before it is
// written to.
Result<std::unique_ptr<KvSequence>> NewPagedSequence(std::shared_ptr<PagePool> pool);

// One run of memory that doubles when full: simple, and the reference that other layouts are tested against.
Result<std::unique_ptr<KvSequence>> NewContiguousSequence(const KvGeometry& geometry, Memory& memory);

}  // namespace kvart

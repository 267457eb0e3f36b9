// Pages of K/V memory, handed out by reference and reused. May depend on: base, layout.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "base/memory.h"
#include "base/status.h"
#include "kvcache/layout.h"

namespace kvart {

// A page goes back to the pool when its last owner lets go. Not thread-safe: the engine's lock covers it.
class PagePool : public std::enable_shared_from_this<PagePool> {
 public:
  // The memory must outlive the pool and its pages.
  static Result<std::shared_ptr<PagePool>> New(const KvGeometry& geometry, Memory& memory);

  struct Page {
    Block block;
  };
  using PageRef = std::shared_ptr<const Page>;

  Result<PageRef> Allocate();

  const KvGeometry& geometry() const { return geometry_; }
  const KvOffsets& layout() const { return layout_; }
  Memory& memory() const { return memory_; }

  // Counters: pages in use now, pages kept for reuse, allocations so far and how many of them were served by reuse.
  uint64_t pages_in_use() const { return in_use_; }
  uint64_t pages_free() const { return free_.size(); }
  uint64_t allocations() const { return allocations_; }
  uint64_t reuses() const { return reuses_; }

 private:
  PagePool(const KvGeometry& geometry, Memory& memory)
      : geometry_(geometry), layout_(geometry, geometry.page_tokens), memory_(memory) {}

  KvGeometry geometry_;
  KvOffsets layout_;
  Memory& memory_;
  std::vector<std::unique_ptr<Page>> free_;
  uint64_t in_use_ = 0, allocations_ = 0, reuses_ = 0;
};

}  // namespace kvart

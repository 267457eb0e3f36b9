// Open pages of K/V memory, handed out by reference and reused. May depend on: base, layout.
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

  // A page with room for some tokens; laid out as KvOffsets(geometry, capacity).
  struct Page {
    Block block;
    int capacity;
  };
  using PageRef = std::shared_ptr<const Page>;

  // Pages grow with their text: 16, 32, 64 … tokens, so that a short one takes little. The smallest capacity that holds
  // so many.
  int CapacityFor(int64_t tokens) const;
  Result<PageRef> Allocate(int64_t tokens);

  const KvGeometry& geometry() const { return geometry_; }
  Memory& memory() const { return memory_; }

  // Counters: pages in use now, pages kept for reuse, allocations so far and how many of them were served by reuse.
  uint64_t pages_in_use() const { return in_use_; }
  uint64_t bytes_in_use() const { return bytes_in_use_; }
  uint64_t allocations() const { return allocations_; }
  uint64_t reuses() const { return reuses_; }

 private:
  PagePool(const KvGeometry& geometry, Memory& memory) : geometry_(geometry), memory_(memory) {}

  KvGeometry geometry_;
  Memory& memory_;
  std::vector<std::unique_ptr<Page>> free_;  // of any capacity
  uint64_t in_use_ = 0, bytes_in_use_ = 0, allocations_ = 0, reuses_ = 0;
};

}  // namespace kvart

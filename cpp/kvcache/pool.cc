#include "kvcache/pool.h"

#include <algorithm>
#include <utility>

namespace kvart {
namespace {

constexpr int kSmallestPage = 16;
constexpr size_t kMaxFreePages = 32;  // enough for what sessions come and go with; the rest returns to the system

}  // namespace

Result<std::shared_ptr<PagePool>> PagePool::New(const KvGeometry& geometry, Memory& memory) {
  KVART_RETURN_IF_ERROR(CheckGeometry(geometry));
  return std::shared_ptr<PagePool>(new PagePool(geometry, memory));
}

int PagePool::CapacityFor(int64_t tokens) const {
  int capacity = std::min(kSmallestPage, geometry_.page_tokens);
  while (capacity < tokens && capacity < geometry_.page_tokens)
    capacity = std::min(2 * capacity, geometry_.page_tokens);
  return capacity;
}

Result<PagePool::PageRef> PagePool::Allocate(int64_t tokens) {
  const int capacity = CapacityFor(tokens);
  std::unique_ptr<Page> page;
  const auto found = std::find_if(free_.begin(), free_.end(), [&](const auto& p) { return p->capacity == capacity; });
  if (found != free_.end()) {
    page = std::move(*found);
    free_.erase(found);
    ++reuses_;
  } else {
    KVART_ASSIGN_OR_RETURN(Block block, Block::Allocate(memory_, KvOffsets(geometry_, capacity).bytes()));
    page = std::make_unique<Page>(Page{std::move(block), capacity});
  }
  ++allocations_;
  ++in_use_;
  bytes_in_use_ += page->block.bytes();
  free_.reserve(kMaxFreePages);  // so that giving back cannot fail
  return PageRef(page.release(), [pool = shared_from_this()](const Page* p) {
    --pool->in_use_;
    pool->bytes_in_use_ -= p->block.bytes();
    std::unique_ptr<Page> owned(const_cast<Page*>(p));
    if (pool->free_.size() < kMaxFreePages) pool->free_.push_back(std::move(owned));
  });
}

}  // namespace kvart

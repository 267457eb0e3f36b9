#include "kvcache/pool.h"

#include <utility>

namespace kvart {
namespace {

constexpr size_t kMaxFreePages = 32;  // enough for what sessions come and go with; the rest returns to the system

}  // namespace

Result<std::shared_ptr<PagePool>> PagePool::New(const KvGeometry& geometry, Memory& memory) {
  KVART_RETURN_IF_ERROR(CheckGeometry(geometry));
  return std::shared_ptr<PagePool>(new PagePool(geometry, memory));
}

Result<PagePool::PageRef> PagePool::Allocate() {
  std::unique_ptr<Page> page;
  if (!free_.empty()) {
    page = std::move(free_.back());
    free_.pop_back();
    ++reuses_;
  } else {
    KVART_ASSIGN_OR_RETURN(Block block, Block::Allocate(memory_, layout_.bytes()));
    page = std::make_unique<Page>(Page{std::move(block)});
  }
  ++allocations_;
  ++in_use_;
  free_.reserve(kMaxFreePages);  // so that giving back cannot fail
  return PageRef(page.release(), [pool = shared_from_this()](const Page* p) {
    --pool->in_use_;
    std::unique_ptr<Page> owned(const_cast<Page*>(p));
    if (pool->free_.size() < kMaxFreePages) pool->free_.push_back(std::move(owned));
  });
}

}  // namespace kvart

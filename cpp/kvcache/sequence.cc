#include "kvcache/sequence.h"

#include <algorithm>
#include <utility>

namespace kvart {
namespace {

int64_t DivideUp(int64_t a, int64_t b) { return (a + b - 1) / b; }

Status CheckRewind(int64_t n_tokens, int64_t size) {
  if (n_tokens >= 0 && n_tokens <= size) return Status::Ok();
  return Errorf(StatusCode::kInvalidArgument, "cannot rewind to %lld tokens: 0 … %lld are there",
                static_cast<long long>(n_tokens), static_cast<long long>(size));
}

class PagedSequence final : public KvSequence {
 public:
  explicit PagedSequence(std::shared_ptr<PagePool> pool) : KvSequence(pool->geometry()), pool_(std::move(pool)) {}

  Status Reserve(int64_t n) override {
    const int64_t page_tokens = geometry_.page_tokens;
    const size_t n_pages = static_cast<size_t>(DivideUp(size_ + n, page_tokens));
    std::vector<PagePool::PageRef> pages = pages_;
    pages.reserve(n_pages);
    // The page that will be written to must be ours alone.
    const size_t tail = static_cast<size_t>(size_ / page_tokens);
    if (n > 0 && size_ % page_tokens != 0 && pages_[tail].use_count() > 2) {  // ours and the copy above
      KVART_ASSIGN_OR_RETURN(pages[tail], pool_->Allocate());
      KVART_RETURN_IF_ERROR(pool_->memory().Copy(pages[tail]->block.address(), pages_[tail]->block.address(),
                                                 pool_->layout().bytes()));
    }
    while (pages.size() < n_pages) {
      KVART_ASSIGN_OR_RETURN(PagePool::PageRef page, pool_->Allocate());
      pages.push_back(std::move(page));
    }
    pages_ = std::move(pages);
    return Status::Ok();
  }

  KvView View(int layer, int64_t n_tokens) const override {
    KvView view{geometry_, {}, pool_->layout().head_bytes()};
    view.pages.reserve(static_cast<size_t>(DivideUp(n_tokens, geometry_.page_tokens)));
    for (int64_t i = 0; i < DivideUp(n_tokens, geometry_.page_tokens); ++i) {
      const Address base = pages_[static_cast<size_t>(i)]->block.address();
      view.pages.push_back({base + static_cast<Address>(pool_->layout().Keys(layer, 0)),
                            base + static_cast<Address>(pool_->layout().Values(layer, 0))});
    }
    return view;
  }

  Status Rewind(int64_t n_tokens) override {
    KVART_RETURN_IF_ERROR(CheckRewind(n_tokens, size_));
    pages_.resize(static_cast<size_t>(DivideUp(n_tokens, geometry_.page_tokens)));
    size_ = n_tokens;
    return Status::Ok();
  }

  Result<std::unique_ptr<KvSequence>> Fork() const override {
    auto fork = std::make_unique<PagedSequence>(pool_);
    fork->pages_.assign(pages_.begin(), pages_.begin() + DivideUp(size_, geometry_.page_tokens));
    fork->size_ = size_;
    return std::unique_ptr<KvSequence>(std::move(fork));
  }

  uint64_t held_bytes() const override { return pages_.size() * pool_->layout().bytes(); }

 private:
  std::shared_ptr<PagePool> pool_;
  std::vector<PagePool::PageRef> pages_;
};

class ContiguousSequence final : public KvSequence {
 public:
  ContiguousSequence(const KvGeometry& geometry, Memory& memory)
      : KvSequence(geometry), memory_(memory), layout_(geometry, 0) {}

  Status Reserve(int64_t n) override {
    if (size_ + n <= capacity_) return Status::Ok();
    const int64_t pages = DivideUp(std::max(size_ + n, 2 * capacity_), geometry_.page_tokens);
    return Grow(pages * geometry_.page_tokens);
  }

  KvView View(int layer, int64_t n_tokens) const override {
    KvView view{geometry_, {}, layout_.head_bytes()};
    for (int64_t token = 0; token < n_tokens; token += geometry_.page_tokens) {
      view.pages.push_back({block_.address() + static_cast<Address>(layout_.Keys(layer, token)),
                            block_.address() + static_cast<Address>(layout_.Values(layer, token))});
    }
    return view;
  }

  Status Rewind(int64_t n_tokens) override {
    KVART_RETURN_IF_ERROR(CheckRewind(n_tokens, size_));
    size_ = n_tokens;
    return Status::Ok();
  }

  Result<std::unique_ptr<KvSequence>> Fork() const override {
    auto fork = std::make_unique<ContiguousSequence>(geometry_, memory_);
    if (size_ > 0) {
      KVART_ASSIGN_OR_RETURN(fork->block_, Block::Allocate(memory_, layout_.bytes()));
      KVART_RETURN_IF_ERROR(memory_.Copy(fork->block_.address(), block_.address(), layout_.bytes()));
      fork->capacity_ = capacity_;
      fork->layout_ = layout_;
      fork->size_ = size_;
    }
    return std::unique_ptr<KvSequence>(std::move(fork));
  }

  uint64_t held_bytes() const override { return block_.bytes(); }

 private:
  Status Grow(int64_t capacity) {
    const KvOffsets layout(geometry_, capacity);
    KVART_ASSIGN_OR_RETURN(Block block, Block::Allocate(memory_, layout.bytes()));
    const uint64_t k_bytes = RowBytes(geometry_.k_type, static_cast<uint64_t>(geometry_.head_dim));
    const uint64_t v_bytes = RowBytes(geometry_.v_type, static_cast<uint64_t>(geometry_.head_dim));
    const uint64_t tokens = static_cast<uint64_t>(DivideUp(size_, kTileTokens) * kTileTokens);
    for (int layer = 0; size_ > 0 && layer < geometry_.n_layers; ++layer) {
      for (int head = 0; head < geometry_.n_kv_heads; ++head) {
        const auto at = [&](const Block& b, const KvOffsets& l, bool keys) {
          return b.address() + static_cast<Address>((keys ? l.Keys(layer, 0) : l.Values(layer, 0)) + head * l.head_bytes());
        };
        KVART_RETURN_IF_ERROR(memory_.Copy(at(block, layout, true), at(block_, layout_, true), tokens * k_bytes));
        KVART_RETURN_IF_ERROR(memory_.Copy(at(block, layout, false), at(block_, layout_, false), tokens * v_bytes));
      }
    }
    block_ = std::move(block);
    layout_ = layout;
    capacity_ = capacity;
    return Status::Ok();
  }

  Memory& memory_;
  Block block_;
  KvOffsets layout_;
  int64_t capacity_ = 0;
};

}  // namespace

Result<std::unique_ptr<KvSequence>> NewPagedSequence(std::shared_ptr<PagePool> pool) {
  return std::unique_ptr<KvSequence>(std::make_unique<PagedSequence>(std::move(pool)));
}

Result<std::unique_ptr<KvSequence>> NewContiguousSequence(const KvGeometry& geometry, Memory& memory) {
  KVART_RETURN_IF_ERROR(CheckGeometry(geometry));
  return std::unique_ptr<KvSequence>(std::make_unique<ContiguousSequence>(geometry, memory));
}

}  // namespace kvart

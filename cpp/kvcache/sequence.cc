#include "kvcache/sequence.h"

#include <algorithm>
#include <limits>
#include <utility>

namespace kvart {
namespace {

int64_t DivideUp(int64_t a, int64_t b) {
  return (a + b - 1) / b;
}

Status CheckRewind(int64_t n_tokens, int64_t size) {
  if (n_tokens >= 0 && n_tokens <= size) return Status::Ok();
  return Errorf(StatusCode::kInvalidArgument, "cannot rewind to %lld tokens: 0 … %lld are there",
                static_cast<long long>(n_tokens), static_cast<long long>(size));
}

class PagedSequence final : public KvSequence {
 public:
  PagedSequence(std::shared_ptr<PagePool> pool, std::shared_ptr<PageStore> store, int64_t window)
      : KvSequence(pool->geometry()),
        pool_(std::move(pool)),
        store_(std::move(store)),
        sealed_offsets_(geometry_),
        window_pages_(static_cast<size_t>(DivideUp(window, geometry_.page_tokens))) {}

  int64_t Room() const override {
    return geometry_.seals() ? geometry_.page_tokens - (size() - open_begin()) : std::numeric_limits<int64_t>::max();
  }

  Status Reserve(int64_t n) override {
    if (n > Room()) return Status(StatusCode::kInternal, "more tokens at once than the open page has room for");
    if (n == 0) return Status::Ok();
    const int64_t page_tokens = geometry_.page_tokens, used = size() - open_begin(), end = used + n;
    std::vector<PagePool::PageRef> pages = open_;
    // The page that will be written to must be ours alone, and have room.
    if (used % page_tokens != 0) {
      const size_t tail = static_cast<size_t>(used / page_tokens);
      const int64_t in_page = used % page_tokens, wanted = std::min(page_tokens, in_page + n);
      const PagePool::Page& old = *open_[tail];
      if (open_[tail].use_count() > 2 || old.capacity < wanted) {  // two: ours and the copy above
        KVART_ASSIGN_OR_RETURN(pages[tail], pool_->Allocate(wanted));
        KVART_RETURN_IF_ERROR(CopyTokens(old.block.address(), {geometry_, old.capacity}, pages[tail]->block.address(),
                                         {geometry_, pages[tail]->capacity}, Tiles(in_page)));
      }
    }
    while (static_cast<int64_t>(pages.size()) * page_tokens < end) {
      KVART_ASSIGN_OR_RETURN(
          PagePool::PageRef page,
          pool_->Allocate(std::min(page_tokens, end - static_cast<int64_t>(pages.size()) * page_tokens)));
      pages.push_back(std::move(page));
    }
    open_ = std::move(pages);
    return Status::Ok();
  }

  KvView View(int layer, int64_t n_tokens) const override {
    KvView view{geometry_, layer, {}};
    const int64_t page_tokens = geometry_.page_tokens;
    view.runs.reserve(sealed_.size() + open_.size() + 1);
    const size_t begin = FirstVisible(sealed_.size());
    if (sinks_ != nullptr) {
      view.runs.push_back(FloatRun(sinks_->address(), SinkOffsets(), layer, 0, geometry_.sinks));
      view.dropped = begin > 0 ? static_cast<int64_t>(begin) * page_tokens - geometry_.sinks : 0;
      view.runs.back().turned = view.dropped > 0;
    }
    for (size_t i = begin; i < sealed_.size(); ++i) {
      KvView::Run run;
      const Address base = AddressOf(sealed_[i].slot->payload().data());
      run.k = base + static_cast<Address>(sealed_offsets_.Keys(layer));
      run.v = base + static_cast<Address>(sealed_offsets_.Values(layer));
      run.head_stride = sealed_offsets_.head_bytes();
      run.pos = static_cast<int64_t>(i) * page_tokens;
      run.n = geometry_.page_tokens;
      run.first = i == 0 ? geometry_.sinks : 0;
      run.sealed = true;
      run.fine = base + static_cast<Address>(sealed_offsets_.Fine());
      view.runs.push_back(run);
    }
    for (int64_t pos = open_begin(); pos < n_tokens; pos += page_tokens) {
      const size_t i = static_cast<size_t>((pos - open_begin()) / page_tokens);
      view.runs.push_back(
          FloatRun(open_[i]->block.address(), {geometry_, open_[i]->capacity}, layer, pos, open_[i]->capacity));
    }
    return view;
  }

  Address FullPage() const override {
    return geometry_.seals() && size() - open_begin() == geometry_.page_tokens ? open_[0]->block.address() : 0;
  }

  Status Seal(std::span<const uint8_t> payload) override {
    if (sealed_.empty() && geometry_.sinks > 0) KVART_RETURN_IF_ERROR(SealSinks());
    const SlotHead head = HeadOf(SlotKind::kPage, static_cast<uint32_t>(sealed_.size()), ids());
    KVART_ASSIGN_OR_RETURN(std::shared_ptr<const SlotRef> slot, store_->Put(head, payload));
    sealed_.push_back({head.name, std::move(slot)});
    open_.clear();
    for (size_t i = 0; i < FirstVisible(sealed_.size()); ++i)
      sealed_[i].slot.reset();  // back to the pool, for whoever wants the room
    return Status::Ok();
  }

  Result<int64_t> Adopt(std::span<const int32_t> ids) override {
    if (!geometry_.seals() || !open_.empty()) return int64_t{0};
    const size_t page_tokens = static_cast<size_t>(geometry_.page_tokens);
    size_t done = 0;
    for (; ids.size() - done >= page_tokens; done += page_tokens) {
      SlotHead head;
      head.page = static_cast<uint32_t>(sealed_.size());
      head.kind = SlotKind::kPage;
      head.ids.assign(ids.begin() + static_cast<int64_t>(done), ids.begin() + static_cast<int64_t>(done + page_tokens));
      head.previous = LastName();
      head.name = NameOfPage(head.previous, head.ids);
      KVART_ASSIGN_OR_RETURN(std::shared_ptr<const SlotRef> slot, store_->Find(head));
      if (slot == nullptr || !Usable(slot->payload())) break;
      if (sealed_.empty() && geometry_.sinks > 0) {
        KVART_ASSIGN_OR_RETURN(sinks_, FindSinks(head.name));
        if (sinks_ == nullptr) break;
      }
      sealed_.push_back({head.name, std::move(slot)});
      Commit(head.ids);
    }
    for (size_t i = 0; i < FirstVisible(sealed_.size()); ++i) sealed_[i].slot.reset();
    return static_cast<int64_t>(done);
  }

  Status Rewind(int64_t n_tokens) override {
    KVART_RETURN_IF_ERROR(CheckRewind(n_tokens, size()));
    if (n_tokens < open_begin()) {  // into a sealed page: its half-precision rows are gone
      n_tokens = n_tokens / geometry_.page_tokens * geometry_.page_tokens;
      const size_t keep = static_cast<size_t>(n_tokens / geometry_.page_tokens);
      for (size_t i = FirstVisible(keep); i < keep; ++i) {
        if (sealed_[i].slot == nullptr) n_tokens = 0;  // the window has dropped what these tokens see: all over again
      }
      sealed_.resize(static_cast<size_t>(n_tokens / geometry_.page_tokens));
      if (sealed_.empty()) sinks_.reset();
    }
    open_.resize(static_cast<size_t>(DivideUp(n_tokens - open_begin(), geometry_.page_tokens)));
    ids_.resize(static_cast<size_t>(n_tokens));
    return Status::Ok();
  }

  Result<std::unique_ptr<KvSequence>> Fork() const override {
    auto fork =
        std::make_unique<PagedSequence>(pool_, store_, static_cast<int64_t>(window_pages_) * geometry_.page_tokens);
    fork->sealed_ = sealed_;
    fork->sinks_ = sinks_;
    fork->open_.assign(open_.begin(), open_.begin() + DivideUp(size() - open_begin(), geometry_.page_tokens));
    fork->ids_ = ids_;
    return std::unique_ptr<KvSequence>(std::move(fork));
  }

  Status Check() const override { return sealed_.empty() ? Status::Ok() : store_->Check(); }

  Result<KvPieces> Export() const override {
    if (!geometry_.seals())
      return Status(StatusCode::kUnsupported,
                    "pages of floats are computed again from their ids; found " + geometry_.ToString());
    KvPieces pieces;
    for (const Sealed& page : sealed_) {
      pieces.sealed.push_back(page.slot != nullptr ? page.slot->payload() : std::span<const uint8_t>());
    }
    if (sinks_ != nullptr) {
      pieces.sinks.resize(sinks_->bytes());
      KVART_RETURN_IF_ERROR(pool_->memory().Read(pieces.sinks.data(), sinks_->address(), sinks_->bytes()));
    }
    pieces.open_tokens = size() - open_begin();
    if (pieces.open_tokens > 0) {
      KVART_ASSIGN_OR_RETURN(const Block block, CopyOfOpen(Tiles(pieces.open_tokens)));
      pieces.open.resize(block.bytes());
      KVART_RETURN_IF_ERROR(pool_->memory().Read(pieces.open.data(), block.address(), block.bytes()));
    }
    return pieces;
  }

  Status Restore(std::span<const int32_t> ids, const KvPieces& pieces) override {
    const auto misfit = [](const char* what, size_t found, uint64_t wanted) {
      return Errorf(StatusCode::kCorrupt, "%s of %zu bytes; %llu are wanted", what, found,
                    static_cast<unsigned long long>(wanted));
    };
    if (!geometry_.seals() || !open_.empty())
      return Status(StatusCode::kInternal, "K/V can be restored only where no page is open");
    const size_t page_tokens = static_cast<size_t>(geometry_.page_tokens),
                 n_open = static_cast<size_t>(pieces.open_tokens);
    if (pieces.open_tokens < 0 || n_open > page_tokens || pieces.sealed.size() > ids.size() / page_tokens ||
        pieces.sealed.size() * page_tokens + n_open != ids.size()) {
      return Errorf(StatusCode::kCorrupt, "%zu sealed pages and %lld open tokens do not make %zu tokens",
                    pieces.sealed.size(), static_cast<long long>(pieces.open_tokens), ids.size());
    }
    if (!pieces.sealed.empty() && sealed_.empty() && geometry_.sinks > 0) {
      if (pieces.sinks.size() != SinkOffsets().bytes())
        return misfit("sinks", pieces.sinks.size(), SinkOffsets().bytes());
      KVART_ASSIGN_OR_RETURN(Block block, Block::Allocate(pool_->memory(), pieces.sinks.size()));
      KVART_RETURN_IF_ERROR(pool_->memory().Write(block.address(), pieces.sinks.data(), pieces.sinks.size()));
      sinks_ = std::make_shared<const Block>(std::move(block));
    }
    for (const std::span<const uint8_t> payload : pieces.sealed) {
      SlotHead head;
      head.kind = SlotKind::kPage;
      head.page = static_cast<uint32_t>(sealed_.size());
      head.ids.assign(ids.begin(), ids.begin() + static_cast<int64_t>(page_tokens));
      head.previous = LastName();
      head.name = NameOfPage(head.previous, head.ids);
      std::shared_ptr<const SlotRef> slot;
      if (!payload.empty()) {
        if (payload.size() != sealed_offsets_.bytes()) return misfit("a page", payload.size(), sealed_offsets_.bytes());
        if (!Usable(payload)) return Status(StatusCode::kCorrupt, "a page whose table of fine rows is not one");
        KVART_ASSIGN_OR_RETURN(slot, store_->Put(head, payload));
      }
      sealed_.push_back({head.name, std::move(slot)});
      Commit(head.ids);
      ids = ids.subspan(page_tokens);
    }
    for (size_t i = FirstVisible(sealed_.size()); i < sealed_.size(); ++i) {
      if (sealed_[i].slot == nullptr) return Status(StatusCode::kCorrupt, "a page that is still needed is missing");
    }
    if (n_open == 0) return Status::Ok();
    const KvOffsets from(geometry_, Tiles(pieces.open_tokens));
    if (pieces.open.size() != from.bytes()) return misfit("an open page", pieces.open.size(), from.bytes());
    KVART_ASSIGN_OR_RETURN(const Block block, Block::Allocate(pool_->memory(), pieces.open.size()));
    KVART_RETURN_IF_ERROR(pool_->memory().Write(block.address(), pieces.open.data(), pieces.open.size()));
    KVART_RETURN_IF_ERROR(Reserve(pieces.open_tokens));
    KVART_RETURN_IF_ERROR(CopyTokens(block.address(), from, open_[0]->block.address(), {geometry_, open_[0]->capacity},
                                     Tiles(pieces.open_tokens)));
    Commit(ids);
    return Status::Ok();
  }

  uint64_t held_bytes() const override {
    uint64_t bytes = 0;
    for (const PagePool::PageRef& page : open_) bytes += page->block.bytes();
    for (const Sealed& page : sealed_) bytes += page.slot != nullptr ? sealed_offsets_.bytes() : 0;
    if (sinks_ != nullptr) bytes += sinks_->bytes();
    return bytes;
  }

 private:
  struct Sealed {
    PageName name;
    std::shared_ptr<const SlotRef> slot;
  };

  int64_t open_begin() const { return static_cast<int64_t>(sealed_.size()) * geometry_.page_tokens; }
  PageName LastName() const { return sealed_.empty() ? PageName{} : sealed_.back().name; }
  static int64_t Tiles(int64_t tokens) { return DivideUp(tokens, kTileTokens) * kTileTokens; }
  KvOffsets SinkOffsets() const { return {geometry_, Tiles(geometry_.sinks)}; }
  // The first sealed page that tokens of page `page` see.
  size_t FirstVisible(size_t page) const {
    return window_pages_ > 0 && page > window_pages_ ? page - window_pages_ : 0;
  }

  // What a page from a file must fulfil beyond its checksum, so that nothing is read outside it.
  bool Usable(std::span<const uint8_t> payload) const {
    const KvFine& fine = sealed_offsets_.fine();
    return fine.rows() == 0 || fine.Valid(payload.subspan(sealed_offsets_.Fine()), geometry_.head_dim);
  }

  static KvView::Run FloatRun(Address base, const KvOffsets& at, int layer, int64_t pos, int32_t n) {
    KvView::Run run;
    run.k = base + static_cast<Address>(at.Keys(layer, 0));
    run.v = base + static_cast<Address>(at.Values(layer, 0));
    run.head_stride = at.head_bytes();
    run.pos = pos;
    run.n = n;
    return run;
  }

  // The head of page `page` of a text of these ids, behind the pages that are sealed.
  SlotHead HeadOf(SlotKind kind, uint32_t page, std::span<const int32_t> ids) const {
    SlotHead head;
    head.kind = kind;
    head.page = page;
    const auto begin = ids.begin() + static_cast<int64_t>(page) * geometry_.page_tokens;
    head.ids.assign(begin, begin + geometry_.page_tokens);
    head.previous = LastName();
    head.name = NameOfPage(head.previous, head.ids);
    return head;
  }

  // Copies the first tokens (whole tiles) from one run of float memory to another.
  Status CopyTokens(Address from_base, const KvOffsets& from, Address to_base, const KvOffsets& to,
                    int64_t tokens) const {
    Memory& memory = pool_->memory();
    const size_t k_bytes = static_cast<size_t>(from.Keys(0, tokens) - from.Keys(0, 0));
    const size_t v_bytes = static_cast<size_t>(from.Values(0, tokens) - from.Values(0, 0));
    for (int layer = 0; layer < geometry_.n_layers; ++layer) {
      for (int head = 0; head < geometry_.n_kv_heads; ++head) {
        const auto at = [&](Address base, const KvOffsets& offsets, int64_t offset) {
          return base + static_cast<Address>(offset + head * offsets.head_bytes());
        };
        KVART_RETURN_IF_ERROR(
            memory.Copy(at(to_base, to, to.Keys(layer, 0)), at(from_base, from, from.Keys(layer, 0)), k_bytes));
        KVART_RETURN_IF_ERROR(
            memory.Copy(at(to_base, to, to.Values(layer, 0)), at(from_base, from, from.Values(layer, 0)), v_bytes));
      }
    }
    return Status::Ok();
  }

  // The open page's first tokens in a run of their own.
  Result<Block> CopyOfOpen(int64_t tokens) const {
    const KvOffsets to(geometry_, tokens);
    KVART_ASSIGN_OR_RETURN(Block block, Block::Allocate(pool_->memory(), to.bytes()));
    KVART_RETURN_IF_ERROR(
        CopyTokens(open_[0]->block.address(), {geometry_, open_[0]->capacity}, block.address(), to, tokens));
    return block;
  }

  // The first tokens of the open page to a run of their own, which is kept in the store in pieces of at most a page's
  // payload.
  Status SealSinks() {
    KVART_ASSIGN_OR_RETURN(Block block, CopyOfOpen(Tiles(geometry_.sinks)));
    std::vector<uint8_t> bytes(block.bytes());
    KVART_RETURN_IF_ERROR(pool_->memory().Read(bytes.data(), block.address(), bytes.size()));
    const PageName first_page = HeadOf(SlotKind::kPage, 0, ids()).name;
    uint32_t piece = 0;
    for (size_t begin = 0; begin < bytes.size(); begin += sealed_offsets_.bytes(), ++piece) {
      const size_t n = std::min<size_t>(bytes.size() - begin, sealed_offsets_.bytes());
      KVART_RETURN_IF_ERROR(store_->Put(SinkHead(first_page, piece), std::span(bytes).subspan(begin, n)).status());
    }
    sinks_ = std::make_shared<const Block>(std::move(block));
    return Status::Ok();
  }

  // The head of one piece of the sinks that go with a first page.
  static SlotHead SinkHead(const PageName& first_page, uint32_t piece) {
    SlotHead head;
    head.kind = SlotKind::kSinks;
    head.page = piece;
    head.previous = first_page;
    const int32_t id = static_cast<int32_t>(piece);
    head.name = NameOfPage(first_page, {&id, 1});
    return head;
  }

  // The sinks that go with this first page, or nullptr.
  Result<std::shared_ptr<const Block>> FindSinks(const PageName& first_page) {
    std::vector<uint8_t> bytes;
    for (uint32_t piece = 0; bytes.size() < SinkOffsets().bytes(); ++piece) {
      KVART_ASSIGN_OR_RETURN(std::shared_ptr<const SlotRef> slot, store_->Find(SinkHead(first_page, piece)));
      if (slot == nullptr || slot->payload().empty()) return std::shared_ptr<const Block>();
      bytes.insert(bytes.end(), slot->payload().begin(), slot->payload().end());
    }
    if (bytes.size() != SinkOffsets().bytes()) return std::shared_ptr<const Block>();
    KVART_ASSIGN_OR_RETURN(Block block, Block::Allocate(pool_->memory(), bytes.size()));
    KVART_RETURN_IF_ERROR(pool_->memory().Write(block.address(), bytes.data(), bytes.size()));
    return std::make_shared<const Block>(std::move(block));
  }

  std::shared_ptr<PagePool> pool_;
  std::shared_ptr<PageStore> store_;
  SealedOffsets sealed_offsets_;
  size_t window_pages_;                  // whole pages before a token's own that it sees; 0: all
  std::vector<Sealed> sealed_;           // pages 0 …, where the geometry seals
  std::shared_ptr<const Block> sinks_;   // the first tokens in half precision, once their page is sealed
  std::vector<PagePool::PageRef> open_;  // the pages behind them: one at most where the geometry seals
};

class ContiguousSequence final : public KvSequence {
 public:
  ContiguousSequence(const KvGeometry& geometry, Memory& memory)
      : KvSequence(geometry), memory_(memory), layout_(geometry, 0) {}

  int64_t Room() const override { return std::numeric_limits<int64_t>::max(); }

  Status Reserve(int64_t n) override {
    if (size() + n <= capacity_) return Status::Ok();
    const int64_t pages = DivideUp(std::max(size() + n, 2 * capacity_), geometry_.page_tokens);
    return Grow(pages * geometry_.page_tokens);
  }

  KvView View(int layer, int64_t n_tokens) const override {
    KvView view{geometry_, layer, {}};
    for (int64_t token = 0; token < n_tokens; token += geometry_.page_tokens) {
      KvView::Run run;
      run.k = block_.address() + static_cast<Address>(layout_.Keys(layer, token));
      run.v = block_.address() + static_cast<Address>(layout_.Values(layer, token));
      run.head_stride = layout_.head_bytes();
      run.pos = token;
      run.n = geometry_.page_tokens;
      view.runs.push_back(run);
    }
    return view;
  }

  Status Rewind(int64_t n_tokens) override {
    KVART_RETURN_IF_ERROR(CheckRewind(n_tokens, size()));
    ids_.resize(static_cast<size_t>(n_tokens));
    return Status::Ok();
  }

  Result<std::unique_ptr<KvSequence>> Fork() const override {
    auto fork = std::make_unique<ContiguousSequence>(geometry_, memory_);
    if (size() > 0) {
      KVART_ASSIGN_OR_RETURN(fork->block_, Block::Allocate(memory_, layout_.bytes()));
      KVART_RETURN_IF_ERROR(memory_.Copy(fork->block_.address(), block_.address(), layout_.bytes()));
      fork->capacity_ = capacity_;
      fork->layout_ = layout_;
      fork->ids_ = ids_;
    }
    return std::unique_ptr<KvSequence>(std::move(fork));
  }

  uint64_t held_bytes() const override { return block_.bytes(); }

 private:
  Status Grow(int64_t capacity) {
    const KvOffsets layout(geometry_, capacity);
    KVART_ASSIGN_OR_RETURN(Block block, Block::Allocate(memory_, layout.bytes()));
    const uint64_t k_bytes = static_cast<uint64_t>(ElementBytes(geometry_.open_k()) * geometry_.head_dim);
    const uint64_t v_bytes = static_cast<uint64_t>(ElementBytes(geometry_.open_v()) * geometry_.head_dim);
    const uint64_t tokens = static_cast<uint64_t>(DivideUp(size(), kTileTokens) * kTileTokens);
    for (int layer = 0; size() > 0 && layer < geometry_.n_layers; ++layer) {
      for (int head = 0; head < geometry_.n_kv_heads; ++head) {
        const auto at = [&](const Block& b, const KvOffsets& l, bool keys) {
          return b.address() +
                 static_cast<Address>((keys ? l.Keys(layer, 0) : l.Values(layer, 0)) + head * l.head_bytes());
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

Result<std::unique_ptr<KvSequence>> NewPagedSequence(std::shared_ptr<PagePool> pool, std::shared_ptr<PageStore> store,
                                                     int64_t window) {
  if (window < 0 || (window > 0 && !pool->geometry().seals())) {
    return Status(StatusCode::kUnsupported, "a sliding window of " + std::to_string(window) +
                                                " tokens: wanted 1 or more, and K/V in integers; found " +
                                                pool->geometry().ToString());
  }
  if (pool->geometry().seals() && store == nullptr)
    return Status(StatusCode::kInternal, "a cache that seals pages needs a store");
  return std::unique_ptr<KvSequence>(std::make_unique<PagedSequence>(std::move(pool), std::move(store), window));
}

Result<std::unique_ptr<KvSequence>> NewContiguousSequence(const KvGeometry& geometry, Memory& memory) {
  KVART_RETURN_IF_ERROR(CheckGeometry(geometry));
  if (geometry.seals()) {
    return Status(StatusCode::kUnsupported, "the contiguous layout keeps f32 or f16; found " + geometry.ToString());
  }
  return std::unique_ptr<KvSequence>(std::make_unique<ContiguousSequence>(geometry, memory));
}

}  // namespace kvart

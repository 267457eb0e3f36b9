// The page store without a file. May depend on: base, store.h, store_impl.h. Next for the token: kvcache/sequence.h.
#include <algorithm>
#include <compare>
#include <cstring>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <utility>
#include <vector>

#include "base/memory.h"
#include "kvcache/store_impl.h"

namespace kvart {
namespace {

class MemoryStore : public PageStore, public std::enable_shared_from_this<MemoryStore> {
 public:
  MemoryStore(const PageFileHeader& header, const StoreOptions& options) : header_(header), options_(options) {}

  Result<std::shared_ptr<const SlotRef>> Find(const SlotHead& wanted) override {
    const std::lock_guard<std::mutex> lock(mutex_);
    ++lookups_;
    std::shared_ptr<const SlotRef> ref = FindLocked(wanted);
    if (ref != nullptr) ++hits_;
    return ref;
  }

  Result<std::shared_ptr<const SlotRef>> Put(const SlotHead& head, std::span<const uint8_t> payload) override {
    KVART_RETURN_IF_ERROR(CheckPut(header_, options_, head, payload));
    const std::lock_guard<std::mutex> lock(mutex_);
    if (std::shared_ptr<const SlotRef> ref = FindLocked(head)) return ref;
    if (slots_.contains({head.kind, head.name})) {  // a broken SHA-256, or names that were not made by NameOfPage
      return Status(StatusCode::kInvalidArgument, "the page store has other ids under the name " + Hex(head.name));
    }
    KVART_ASSIGN_OR_RETURN(Block block, TakeBlock());
    std::memcpy(HostPointer<uint8_t>(block.address()), payload.data(), payload.size());
    ++puts_;
    Slot& slot = slots_[{head.kind, head.name}];
    slot.head = head;
    slot.bytes = payload.size();
    slot.block = std::move(block);
    return Use(slot);
  }

  Status Sync() override { return Status::Ok(); }
  Status Check() override { return Status::Ok(); }

  StoreStats stats() const override {
    const std::lock_guard<std::mutex> lock(mutex_);
    StoreStats s;
    s.slots = slots_.size() + free_.size();
    s.slots_in_use = slots_.size() - unused_.size();
    s.slots_free = free_.size();
    s.slot_bytes = header_.slot_bytes;
    s.lookups = lookups_, s.hits = hits_, s.puts = puts_, s.pool_hits = pool_hits_, s.evictions = evictions_;
    return s;
  }

 private:
  using Key = std::pair<SlotKind, PageName>;
  struct Age {  // what is evicted first is least: long unused, then far behind in its text
    int64_t last_use;
    uint32_t pages_before_last;
    uint64_t order;  // where seconds do not tell
    Key key;
    auto operator<=>(const Age&) const = default;
  };
  struct Slot {
    SlotHead head;
    uint64_t bytes = 0;
    Block block;
    uint32_t refs = 0;
    int64_t last_use = 0;
    uint64_t order = 0;
  };

  class Ref : public SlotRef {
   public:
    Ref(std::shared_ptr<MemoryStore> store, Slot& slot) : store_(std::move(store)), slot_(slot) {}
    ~Ref() override { store_->Release(slot_); }
    std::span<const uint8_t> payload() const override {
      return {HostPointer<const uint8_t>(slot_.block.address()), static_cast<size_t>(slot_.bytes)};
    }

   private:
    std::shared_ptr<MemoryStore> store_;
    Slot& slot_;  // in a map: it stays where it is
  };

  Age AgeOf(const Slot& slot) const {
    return {slot.last_use, UINT32_MAX - slot.head.page, slot.order, {slot.head.kind, slot.head.name}};
  }

  std::shared_ptr<const SlotRef> Use(Slot& slot) {
    if (slot.refs++ == 0) unused_.erase(AgeOf(slot));  // a new one is not there yet
    return std::make_shared<Ref>(shared_from_this(), slot);
  }

  void Release(Slot& slot) {
    const std::lock_guard<std::mutex> lock(mutex_);
    if (--slot.refs > 0) return;
    slot.last_use = FilesOf(options_).Now();
    slot.order = ++uses_;
    unused_.insert(AgeOf(slot));
  }

  std::shared_ptr<const SlotRef> FindLocked(const SlotHead& wanted) {
    const auto found = slots_.find({wanted.kind, wanted.name});
    return found != slots_.end() && found->second.head == wanted ? Use(found->second) : nullptr;
  }

  Result<Block> TakeBlock() {
    if (free_.empty() && options_.budget_bytes > 0 && slots_.size() >= options_.budget_bytes / header_.slot_bytes) {
      if (unused_.empty()) {
        return Errorf(StatusCode::kNoSpace, "the page store's budget of %llu bytes holds %zu pages, and all are in use",
                      static_cast<unsigned long long>(options_.budget_bytes), slots_.size());
      }
      const auto oldest = slots_.find(unused_.begin()->key);
      unused_.erase(unused_.begin());
      free_.push_back(std::move(oldest->second.block));
      slots_.erase(oldest);
      ++evictions_;
    }
    if (free_.empty()) return Block::Allocate(HostMemory(), static_cast<size_t>(header_.MostPayload()));
    ++pool_hits_;
    Block block = std::move(free_.back());
    free_.pop_back();
    return block;
  }

  const PageFileHeader header_;
  const StoreOptions options_;
  mutable std::mutex mutex_;
  std::map<Key, Slot> slots_;
  std::set<Age> unused_;  // of slots_, those without a SlotRef
  std::vector<Block> free_;
  uint64_t uses_ = 0, lookups_ = 0, hits_ = 0, puts_ = 0, pool_hits_ = 0, evictions_ = 0;
};

}  // namespace

Result<std::shared_ptr<PageStore>> PageStore::InMemory(const KvGeometry& geometry, const StoreOptions& options) {
  KVART_ASSIGN_OR_RETURN(const PageFileHeader header, MakePageFileHeader(geometry, options));
  return std::shared_ptr<PageStore>(std::make_shared<MemoryStore>(header, options));
}

}  // namespace kvart

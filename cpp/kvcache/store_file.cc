// The page store in a file: finds, writes, evicts; FORMAT.md says what may be where, and why a crash can't hurt.
// May depend on: base, store.h, store_impl.h, index.h, background.h. Next for the token: kvcache/sequence.h.
#include <algorithm>
#include <map>
#include <mutex>
#include <optional>
#include <unordered_map>
#include <utility>
#include <vector>

#include "base/hash.h"
#include "base/memory.h"
#include "kvcache/background.h"
#include "kvcache/index.h"
#include "kvcache/store_impl.h"

namespace kvart {
namespace {

constexpr uint64_t kMapBytes = 64 << 20, kGrowBytes = 64 << 20;
constexpr uint64_t kGrowSlots = 16;
constexpr size_t kEvictionSample = 64;
constexpr int64_t kLastUseStep = 60;  // seconds: how stale the file's note of a slot's last use may be

// Reading: lock the slot against the writer, look at its head, check its payload once, hand out the mapping.
// Writing: lock the slot against everybody, make its head invalid, payload, head, index, unlock.
class FileStore : public PageStore, public std::enable_shared_from_this<FileStore> {
 public:
  FileStore(std::shared_ptr<RandomFile> file, const std::string& index_path, const PageFileHeader& header,
            const StoreOptions& options)
      : file_(std::move(file)),
        files_(FilesOf(options)),
        header_(header),
        options_(options),
        process_(ProcessId()),
        index_(files_, index_path),
        background_([this] { return SyncFiles(); }, options.sync_ms) {}

  ~FileStore() override {
    if (process_ == ProcessId()) (void)background_.Flush();
  }

  // After construction: private_store is where new pages go while somebody else is the writer; nullptr for the writer.
  Status Start(bool created, std::shared_ptr<PageStore> private_store) {
    private_ = std::move(private_store);
    KVART_ASSIGN_OR_RETURN(seen_bytes_, file_->Size());
    if (private_ == nullptr) return StartWriting(created);
    (void)index_.Open(false);  // there may be none yet
    return Status::Ok();
  }

  Result<std::shared_ptr<const SlotRef>> Find(const SlotHead& wanted) override {
    KVART_RETURN_IF_ERROR(CheckProcess());
    const std::lock_guard<std::mutex> lock(mutex_);
    ++stats_.lookups;
    KVART_ASSIGN_OR_RETURN(std::shared_ptr<const SlotRef> ref, FindLocked(wanted));
    if (ref != nullptr) ++stats_.hits;
    return ref;
  }

  Result<std::shared_ptr<const SlotRef>> Put(const SlotHead& head, std::span<const uint8_t> payload) override {
    KVART_RETURN_IF_ERROR(CheckProcess());
    KVART_RETURN_IF_ERROR(CheckPut(header_, options_, head, payload));
    const std::lock_guard<std::mutex> lock(mutex_);
    KVART_ASSIGN_OR_RETURN(std::shared_ptr<const SlotRef> there, FindLocked(head));
    if (there != nullptr) return there;
    // The writer may have gone meanwhile: then it is our turn.
    if (!writing_ && file_->TryLock(kWriterLock, true).ok()) KVART_RETURN_IF_ERROR(StartWriting(false));
    if (!writing_) return private_->Put(head, payload);
    KVART_ASSIGN_OR_RETURN(const uint32_t slot, TakeSlot());
    const StoredHead stored{head, payload.size(), Crc32c(payload.data(), payload.size()), 0, files_.Now()};
    const Status written = WriteSlot(slot, stored, payload);
    file_->Unlock(kFirstSlotLock + slot);
    if (!written.ok()) return written;
    ++stats_.puts;
    return Use(slot, payload.size());
  }

  Status Sync() override {
    KVART_RETURN_IF_ERROR(CheckProcess());
    return background_.Flush();
  }

  Status Check() override {
    KVART_RETURN_IF_ERROR(CheckProcess());
    const std::lock_guard<std::mutex> lock(mutex_);
    return CheckLocked();
  }

  StoreStats stats() const override {
    if (process_ != ProcessId()) return {};
    const std::lock_guard<std::mutex> lock(mutex_);
    StoreStats s = stats_;
    s.slots = n_slots();
    s.slot_bytes = header_.slot_bytes;
    s.slots_free = free_.size() + (n_slots() - next_unused_);
    s.writable = writing_;
    if (private_ != nullptr) {
      const StoreStats p = private_->stats();
      s.slots += p.slots, s.slots_in_use += p.slots_in_use, s.slots_free += p.slots_free;
      s.puts += p.puts, s.pool_hits += p.pool_hits, s.evictions += p.evictions;
    }
    return s;
  }

 private:
  // What this process knows of a slot. The head on disk is read whenever it matters.
  struct Slot {
    uint32_t refs = 0;
    bool locked = false;               // shared, by this process as a reader
    std::optional<uint32_t> verified;  // the checksum of the head whose payload was found intact
    bool known = false;                // for eviction, the rest is as the file has it, or newer
    bool page = false;                 // holds something
    uint32_t number = 0;               // of the page in its text
    int64_t last_use = 0;
    uint64_t order = 0;  // of uses in this process, where seconds do not tell
  };

  class Ref : public SlotRef {
   public:
    Ref(std::shared_ptr<FileStore> store, uint32_t slot, std::shared_ptr<const uint8_t> data, size_t bytes)
        : store_(std::move(store)), slot_(slot), data_(std::move(data)), bytes_(bytes) {}
    ~Ref() override { store_->Release(slot_); }
    std::span<const uint8_t> payload() const override { return {data_.get(), bytes_}; }

   private:
    std::shared_ptr<FileStore> store_;
    const uint32_t slot_;
    const std::shared_ptr<const uint8_t> data_;
    const size_t bytes_;
  };

  uint64_t n_slots() const { return std::min<uint64_t>(header_.SlotsIn(seen_bytes_), UINT32_MAX); }

  Status CheckProcess() const {
    if (process_ == ProcessId()) return Status::Ok();
    return Status(StatusCode::kUnsupported,
                  file_->path() + " was opened before this process was forked: open it anew in the child");
  }

  Status CheckLocked() {
    KVART_ASSIGN_OR_RETURN(const uint64_t size, file_->Size());
    if (size < seen_bytes_) {
      return Status(StatusCode::kCorrupt,
                    file_->path() + " has " + std::to_string(size) + " bytes; it had " + std::to_string(seen_bytes_) +
                        " and was cut off while it was open",
                    file_->path());
    }
    seen_bytes_ = size;
    return Status::Ok();
  }

  Status SyncFiles() {
    std::shared_ptr<RandomFile> index;
    {
      const std::lock_guard<std::mutex> lock(mutex_);
      index = index_.file();
    }
    KVART_RETURN_IF_ERROR(file_->Sync());
    return index != nullptr ? index->Sync() : Status::Ok();
  }

  Result<std::shared_ptr<const SlotRef>> FindLocked(const SlotHead& wanted) {
    KVART_RETURN_IF_ERROR(CheckLocked());
    std::shared_ptr<const SlotRef> ref;
    std::vector<uint32_t> damaged;  // freed afterwards: the index must not change while it is searched
    Status status;
    index_.Find(wanted.name, [&](uint32_t slot) {
      if (slot >= n_slots()) return false;
      if (!LockForReading(slot)) return false;
      bool intact = true;
      const std::optional<StoredHead> stored = Verify(slot, wanted, &intact);
      if (stored.has_value()) {
        Result<std::shared_ptr<const SlotRef>> used = Use(slot, static_cast<size_t>(stored->payload_bytes));
        if (used.ok()) {
          NoteUse(slot, *stored);
          ref = std::move(used).value();
          return true;
        }
        status = used.status();
      }
      if (!intact) damaged.push_back(slot);
      UnlockUnused(slot);
      return !status.ok();
    });
    KVART_RETURN_IF_ERROR(status);
    stats_.damaged += damaged.size();
    for (const uint32_t slot : damaged) {
      if (writing_ && slots_[slot].refs == 0 && file_->TryLock(kFirstSlotLock + slot, true).ok()) {
        if (Invalidate(slot).ok()) free_.push_back(slot);
        (void)index_.Remove(wanted.name, slot);
        file_->Unlock(kFirstSlotLock + slot);
      }
    }
    if (ref == nullptr && private_ != nullptr) return private_->Find(wanted);
    return ref;
  }

  // The slot's head when it is the wanted one and its payload is intact. *intact: false when it is damaged.
  std::optional<StoredHead> Verify(uint32_t slot, const SlotHead& wanted, bool* intact) {
    bool free = false;
    std::optional<StoredHead> stored = ReadHead(*file_, header_, slot, &free);
    *intact = stored.has_value() || free;
    if (!stored.has_value() || stored->head != wanted) return std::nullopt;
    if (wanted.kind == SlotKind::kPage && stored->payload_bytes != options_.payload_bytes) {
      *intact = false;
      return std::nullopt;
    }
    Slot& state = slots_[slot];
    if (state.verified == stored->head_crc) return stored;
    *intact = IsPayloadIntact(*file_, header_, slot, *stored);
    if (!*intact) return std::nullopt;
    state.verified = stored->head_crc;
    return stored;
  }

  void Touch(Slot& state, int64_t now) {
    state.last_use = now;
    state.order = ++uses_;
  }

  void NoteUse(uint32_t slot, const StoredHead& stored) {
    Slot& state = slots_[slot];
    state.known = state.page = true;
    state.number = stored.head.page;
    Touch(state, files_.Now());
    if (writing_ && (state.last_use < stored.last_use || state.last_use - kLastUseStep > stored.last_use)) {
      (void)file_->Write(header_.SlotOffset(slot) + kLastUseOffset, &state.last_use, sizeof state.last_use);
    }
  }

  Result<std::shared_ptr<const SlotRef>> Use(uint32_t slot, size_t bytes) {
    KVART_ASSIGN_OR_RETURN(std::shared_ptr<const uint8_t> data, DataOf(slot, bytes));
    if (slots_[slot].refs++ == 0) ++stats_.slots_in_use;
    return std::shared_ptr<const SlotRef>(std::make_shared<Ref>(shared_from_this(), slot, std::move(data), bytes));
  }

  void Release(uint32_t slot) {
    if (process_ != ProcessId()) return;  // to unlock here would take the lock from the parent
    const std::lock_guard<std::mutex> lock(mutex_);
    Slot& state = slots_[slot];
    Touch(state, files_.Now());
    if (--state.refs > 0) return;
    --stats_.slots_in_use;
    UnlockUnused(slot);
  }

  // The writer needs no lock: nobody else gives slots away.
  bool LockForReading(uint32_t slot) {
    Slot& state = slots_[slot];
    if (!writing_ && !state.locked) state.locked = file_->TryLock(kFirstSlotLock + slot, false).ok();
    return writing_ || state.locked;
  }
  void UnlockUnused(uint32_t slot) {
    Slot& state = slots_[slot];
    if (state.refs > 0 || !state.locked) return;
    file_->Unlock(kFirstSlotLock + slot);
    state.locked = false;
  }

  // The payload in a mapping of a whole segment, which stays; in memory where there is no mapping to be had.
  Result<std::shared_ptr<const uint8_t>> DataOf(uint32_t slot, size_t bytes) {
    const uint64_t per_segment = std::max<uint64_t>(kMapBytes / header_.slot_bytes, 1);
    const uint64_t segment = slot / per_segment;
    const uint64_t in_segment = slot % per_segment * header_.slot_bytes + header_.PayloadOffset();
    std::shared_ptr<const uint8_t>& base = segments_[segment];
    if (base == nullptr) {
      const size_t n = static_cast<size_t>(per_segment * header_.slot_bytes);
      auto mapped = file_->Map(header_.SlotOffset(segment * per_segment), n);
      if (mapped.ok()) base = std::move(mapped).value();
    }
    if (base != nullptr) return std::shared_ptr<const uint8_t>(base, base.get() + in_segment);
    KVART_ASSIGN_OR_RETURN(Block block, Block::Allocate(HostMemory(), std::max<size_t>(bytes, 1)));
    KVART_RETURN_IF_ERROR(
        file_->Read(header_.SlotOffset(slot) + header_.PayloadOffset(), HostPointer<uint8_t>(block.address()), bytes));
    const auto owner = std::make_shared<Block>(std::move(block));
    return std::shared_ptr<const uint8_t>(owner, HostPointer<const uint8_t>(owner->address()));
  }

  // ---- Writing: only with the writer's lock.

  Status StartWriting(bool created) {
    KVART_ASSIGN_OR_RETURN(const PageFileHeader now, ReadPageFileHeader(*file_));
    header_.used_hint = now.used_hint;
    KVART_RETURN_IF_ERROR(CheckLocked());
    if (seen_bytes_ != header_.SlotOffset(n_slots())) {  // the last slot was cut off; its page may be whole
      (void)file_->Allocate(header_.SlotOffset(n_slots()), header_.slot_bytes);
      KVART_RETURN_IF_ERROR(CheckLocked());
    }
    next_unused_ = std::min(header_.used_hint, n_slots());
    for (auto& [slot, state] : slots_) state.known = false;  // another writer may have been here
    writing_ = true;
    // Where that fails, as on a full disk, pages are computed again until there is room.
    if (created || !index_.Open(true).ok()) (void)RebuildIndex();
    return Status::Ok();
  }

  // A slot that holds nothing, locked for this process alone.
  Result<uint32_t> TakeSlot() {
    for (size_t i = free_.size(); i-- > 0;) {
      const uint32_t slot = free_[i];
      if (!file_->TryLock(kFirstSlotLock + slot, true).ok()) continue;  // a reader just looks at it
      free_.erase(free_.begin() + static_cast<ptrdiff_t>(i));
      ++stats_.pool_hits;
      return slot;
    }
    if (const std::optional<uint32_t> slot = NextUnused()) {
      ++stats_.pool_hits;
      return *slot;
    }
    const Status grown = Grow();
    if (grown.ok()) {
      if (const std::optional<uint32_t> slot = NextUnused()) return *slot;
    }
    if (const std::optional<uint32_t> slot = Evict()) {
      ++stats_.pool_hits;
      return *slot;
    }
    if (!grown.ok()) return grown;
    return Status(StatusCode::kNoSpace, file_->path() + ": all " + std::to_string(n_slots()) + " slots are in use",
                  file_->path());
  }

  // Slots behind all that were used. Where the header's count was behind the truth, what they hold stays.
  std::optional<uint32_t> NextUnused() {
    while (next_unused_ < n_slots()) {
      const uint32_t slot = static_cast<uint32_t>(next_unused_++);
      bool free = false;
      if (ReadHead(*file_, header_, slot, &free).has_value()) continue;
      if (file_->TryLock(kFirstSlotLock + slot, true).ok()) return slot;
      free_.push_back(slot);
    }
    return std::nullopt;
  }

  Status Grow() {
    const uint64_t n = n_slots();
    uint64_t most = UINT32_MAX;
    if (options_.budget_bytes > 0) most = std::min(most, options_.budget_bytes / header_.slot_bytes);
    if (n >= most) {
      return Status(StatusCode::kNoSpace,
                    file_->path() + ": the budget of " + std::to_string(options_.budget_bytes) + " bytes holds " +
                        std::to_string(most) + " pages, and all are in use",
                    file_->path());
    }
    const uint64_t by_bytes = std::max<uint64_t>(kGrowBytes / header_.slot_bytes, 1);
    uint64_t step = std::min({std::max(kGrowSlots, n / 10), by_bytes, most - n});
    Status status;
    for (; step > 0; step /= 2) {
      status = file_->Allocate(header_.SlotOffset(n), step * header_.slot_bytes);
      if (status.ok()) break;
    }
    KVART_RETURN_IF_ERROR(CheckLocked());
    if (n_slots() == n) return status;
    (void)index_.Reserve(n_slots());  // without it the index is only slower
    return Status::Ok();
  }

  // The slot unused for longest, and of a text's pages the last: of all where there are few, of a sample where there
  // are many.
  std::optional<uint32_t> Evict() {
    const size_t n = static_cast<size_t>(n_slots());
    std::vector<uint32_t> candidates;
    for (size_t i = 0; i < std::min(n, kEvictionSample); ++i) {
      random_ = random_ * 6364136223846793005u + 1442695040888963407u;
      candidates.push_back(static_cast<uint32_t>(n <= kEvictionSample ? i : (random_ >> 33) % n));
    }
    if (const std::optional<uint32_t> slot = EvictOneOf(std::move(candidates))) return slot;
    if (n <= kEvictionSample) return std::nullopt;
    candidates.resize(n);
    for (size_t i = 0; i < n; ++i) candidates[i] = static_cast<uint32_t>(i);
    return EvictOneOf(std::move(candidates));
  }

  std::optional<uint32_t> EvictOneOf(std::vector<uint32_t> candidates) {
    for (const uint32_t slot : candidates) {
      Slot& state = slots_[slot];
      if (state.known) continue;
      bool free = false;
      const std::optional<StoredHead> stored = ReadHead(*file_, header_, slot, &free);
      state.known = true;
      state.page = stored.has_value();
      if (stored.has_value()) state.number = stored->head.page, state.last_use = stored->last_use;
    }
    std::erase_if(candidates, [this](uint32_t slot) { return slots_[slot].refs > 0; });
    std::sort(candidates.begin(), candidates.end(), [this](uint32_t a, uint32_t b) {
      const Slot &x = slots_[a], &y = slots_[b];
      if (x.page != y.page) return !x.page;
      if (x.last_use != y.last_use) return x.last_use < y.last_use;
      if (x.number != y.number) return x.number > y.number;
      return x.order != y.order ? x.order < y.order : a < b;
    });
    for (const uint32_t slot : candidates) {
      if (!file_->TryLock(kFirstSlotLock + slot, true).ok()) continue;
      bool free = false;
      const std::optional<StoredHead> stored = ReadHead(*file_, header_, slot, &free);
      if (Invalidate(slot).ok()) {
        if (stored.has_value()) {
          (void)index_.Remove(stored->head.name, slot);
          ++stats_.evictions;
        }
        std::erase(free_, slot);
        return slot;
      }
      file_->Unlock(kFirstSlotLock + slot);
    }
    return std::nullopt;
  }

  // From now on the slot holds nothing, for everybody.
  Status Invalidate(uint32_t slot) {
    Slot& state = slots_[slot];
    state = Slot();
    const std::vector<uint8_t> zeros(header_.HeadBytes());
    KVART_RETURN_IF_ERROR(file_->Write(header_.SlotOffset(slot), zeros.data(), zeros.size()));
    state.known = true;
    background_.Dirty();
    return Status::Ok();
  }

  Status WriteSlot(uint32_t slot, const StoredHead& stored, std::span<const uint8_t> payload) {
    const uint64_t at = header_.SlotOffset(slot);
    const std::vector<uint8_t> head = EncodeHead(header_, stored);
    Status status = file_->Write(at + header_.PayloadOffset(), payload.data(), payload.size());
    if (status.ok()) status = file_->Write(at, head.data(), head.size());
    if (!status.ok()) {
      (void)Invalidate(slot);
      free_.push_back(slot);
      return status;
    }
    bool free = false;
    Slot& state = slots_[slot];
    state = Slot();
    state.verified = DecodeHead(header_, head, &free)->head_crc;
    state.known = state.page = true;
    state.number = stored.head.page;
    Touch(state, stored.last_use);
    background_.Dirty();
    // Without its entry the page is there for who holds it, and is computed again by others: no reason to fail.
    const StatusCode indexed = index_.Insert(stored.head.name, slot).code();
    if (indexed == StatusCode::kCorrupt || indexed == StatusCode::kNotFound) (void)RebuildIndex();
    if (slot >= header_.used_hint) {
      header_.used_hint = uint64_t{slot} + 1;
      (void)file_->Write(kUsedHintOffset, &header_.used_hint, sizeof header_.used_hint);
    }
    return Status::Ok();
  }

  Status RebuildIndex() {
    std::vector<SlotIndex::Entry> entries;
    for (uint32_t slot = 0; slot < n_slots(); ++slot) {
      bool free = false;
      if (const auto stored = ReadHead(*file_, header_, slot, &free))
        entries.push_back({SlotIndex::KeyOf(stored->head.name), slot});
    }
    return index_.Rebuild(entries, n_slots());
  }

  const std::shared_ptr<RandomFile> file_;
  FileSystem& files_;
  PageFileHeader header_;
  const StoreOptions options_;
  const int64_t process_;

  mutable std::mutex mutex_;
  SlotIndex index_;
  std::shared_ptr<PageStore> private_;  // pages of the time when another process was the writer; set once, at the start
  bool writing_ = false;                // holds the writer's lock
  std::unordered_map<uint32_t, Slot> slots_;
  std::map<uint64_t, std::shared_ptr<const uint8_t>> segments_;
  std::vector<uint32_t> free_;
  uint64_t seen_bytes_ = 0;   // the file's size when last looked at
  uint64_t next_unused_ = 0;  // no slot from here on was ever used
  uint64_t random_ = 1, uses_ = 0;
  StoreStats stats_;
  BackgroundSync background_;  // last: its thread ends before the rest goes
};

}  // namespace

Result<std::shared_ptr<PageStore>> PageStore::Open(const std::string& directory, const KvGeometry& geometry,
                                                   const StoreOptions& options) {
  KVART_ASSIGN_OR_RETURN(const PageFileHeader wanted, MakePageFileHeader(geometry, options));
  FileSystem& files = FilesOf(options);
  KVART_RETURN_IF_ERROR(files.MakeDirectories(directory));
  const std::string stem = directory + "/" + Hex(options.fingerprint).substr(0, 16);
  KVART_ASSIGN_OR_RETURN(const OpenedPageFile opened, OpenPageFile(files, stem + ".pages", wanted));
  KVART_ASSIGN_OR_RETURN(const PageFileHeader header, ReadPageFileHeader(*opened.file));
  KVART_RETURN_IF_ERROR(CheckSameStore(stem + ".pages", header, wanted));
  std::shared_ptr<PageStore> private_store;
  if (!opened.writer) {
    KVART_ASSIGN_OR_RETURN(private_store, InMemory(geometry, options));
  }
  auto store = std::make_shared<FileStore>(opened.file, stem + ".index", header, options);
  KVART_RETURN_IF_ERROR(store->Start(opened.created, std::move(private_store)));
  return std::shared_ptr<PageStore>(std::move(store));
}

}  // namespace kvart

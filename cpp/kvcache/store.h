// The page store: sealed pages by name in one mapped file, or in memory. FORMAT.md draws the bytes.
// May depend on: base, quant, layout. Next for the token: kvcache/sequence.h puts full pages here, reads them in place.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "base/fs.h"
#include "base/status.h"
#include "kvcache/layout.h"

namespace kvart {

using PageName = std::array<uint8_t, 32>;

// The name of the page that holds these ids behind the one that previous names (zeros: the first page of a text).
PageName NameOfPage(const PageName& previous, std::span<const int32_t> ids);

enum class SlotKind : uint32_t { kFree = 0, kPage = 1, kSinks = 2 };

// What a slot holds, apart from its payload.
struct SlotHead {
  SlotKind kind = SlotKind::kFree;
  uint32_t page = 0;  // number in its text; 0 for sinks
  PageName name{}, previous{};
  std::vector<int32_t> ids;  // P of them; none for sinks

  bool operator==(const SlotHead&) const = default;
};

// A slot in use: as long as one lives, nobody, in any process, gives its slot away, and the store lives. Immutable.
class SlotRef {
 public:
  virtual ~SlotRef() = default;
  virtual std::span<const uint8_t> payload() const = 0;  // in the mapping, or in memory; aligned to 64 bytes at least
};

struct StoreOptions {
  // Most bytes that slots may take; 0: no limit. Full: what nobody uses is evicted, the longest unused first.
  uint64_t budget_bytes = 0;
  uint64_t payload_bytes = 0;  // of a page; the slot follows from it
  std::string k_format, v_format;
  int sinks = 0;
  std::array<uint8_t, 32> fingerprint{};
  FileSystem* files = nullptr;  // must outlive the store; nullptr: the system's
  // What was written is synced in the background so much later; 0: only by Sync and when the store closes.
  int sync_ms = 500;
};

struct StoreStats {
  uint64_t slots = 0;         // in the file, or in memory
  uint64_t slots_in_use = 0;  // somebody in this process holds a SlotRef
  uint64_t slots_free = 0;    // known to hold nothing
  uint64_t slot_bytes = 0;
  uint64_t lookups = 0, hits = 0;       // Find
  uint64_t puts = 0, pool_hits = 0;     // pages written; those that found a slot without making room for new ones
  uint64_t evictions = 0, damaged = 0;  // slots given away; slots whose checksums failed
  // False while another process holds the writer's lock, or the file is read-only: new pages are private.
  bool writable = true;
};

// Thread-safe. A forked child must not use its parent's file store (kUnsupported) and may destroy it.
class PageStore {
 public:
  virtual ~PageStore() = default;

  // Pages in memory, gone with the process.
  static Result<std::shared_ptr<PageStore>> InMemory(const KvGeometry& geometry, const StoreOptions& options);
  // Pages in directory/<fingerprint>.pages, made when missing. A file that does not fit is refused: the message has
  // what it holds and what was wanted.
  static Result<std::shared_ptr<PageStore>> Open(const std::string& directory, const KvGeometry& geometry,
                                                 const StoreOptions& options);

  // The slot with this name, kind, predecessor and ids, or nullptr. Its checksum is verified at its first use; what
  // fails is a miss.
  virtual Result<std::shared_ptr<const SlotRef>> Find(const SlotHead& wanted) = 0;
  // Keeps a page; the one that is there already, when there is one. kNoSpace when every slot within the budget is in
  // use, or the disk is full.
  virtual Result<std::shared_ptr<const SlotRef>> Put(const SlotHead& head, std::span<const uint8_t> payload) = 0;
  // What was put survives a power cut. Reports what a sync in the background met, once.
  virtual Status Sync() = 0;
  // kCorrupt when somebody made the file shorter under us: reading a payload might then raise SIGBUS. One cheap call to
  // the system: ask before each pass over the pages.
  virtual Status Check() = 0;
  virtual StoreStats stats() const = 0;
};

}  // namespace kvart

// The page store: sealed pages by name in one mapped file, or in memory. FORMAT.md draws the bytes.
// May depend on: base, quant, layout. Next for the token: kvcache/sequence.h puts full pages here and reads them in place.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "base/memory.h"
#include "base/status.h"
#include "kvcache/layout.h"

namespace kvart {

using PageName = std::array<uint8_t, 32>;

enum class SlotKind : uint32_t { kFree = 0, kPage = 1, kSinks = 2 };

// What a slot holds, apart from its payload.
struct SlotHead {
  SlotKind kind = SlotKind::kFree;
  uint32_t page = 0;  // number in its text
  PageName name{}, previous{};
  std::vector<int32_t> ids;  // P of them; none for sinks
};

class PageStore;

// A slot in use: as long as one lives, nobody, in any process, gives its slot away. Movable and cheap; the payload is immutable.
class SlotRef {
 public:
  virtual ~SlotRef() = default;
  virtual std::span<const uint8_t> payload() const = 0;  // in the mapping, or in memory
};

struct StoreOptions {
  uint64_t budget_bytes = 0;  // most bytes that slots may take; 0: no limit. Full: what nobody uses is evicted, the longest unused first
  uint64_t payload_bytes = 0;  // of a page; the slot follows from it
  std::string k_format, v_format;
  int sinks = 0;
  std::array<uint8_t, 32> fingerprint{};
};

struct StoreStats {
  uint64_t slots = 0, slots_in_use = 0, slots_free = 0, slot_bytes = 0;
  uint64_t lookups = 0, hits = 0;        // Find
  uint64_t puts = 0, pool_hits = 0;      // Put, and how many found a free slot rather than making a new one
  uint64_t evictions = 0, damaged = 0;   // slots whose checksum failed
  bool writable = true;                  // false: another process holds the writer's lock; new pages are private
};

// Thread-safe.
class PageStore {
 public:
  virtual ~PageStore() = default;

  // Pages in memory, gone with the process.
  static Result<std::shared_ptr<PageStore>> InMemory(const KvGeometry& geometry, const StoreOptions& options);
  // Pages in directory/<fingerprint>.pages, made when missing.
  static Result<std::shared_ptr<PageStore>> Open(const std::string& directory, const KvGeometry& geometry,
                                                 const StoreOptions& options);

  // The slot with this name, kind, predecessor and ids, or nullptr. Its checksum is verified at its first use.
  virtual Result<std::shared_ptr<const SlotRef>> Find(const SlotHead& wanted) = 0;
  // Keeps a page; the one that is there already, when there is one. kFull when every slot within the budget is in use.
  virtual Result<std::shared_ptr<const SlotRef>> Put(const SlotHead& head, std::span<const uint8_t> payload) = 0;
  virtual Status Sync() = 0;
  virtual StoreStats stats() const = 0;
};

}  // namespace kvart

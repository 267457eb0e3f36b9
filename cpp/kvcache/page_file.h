// The bytes of a page store's file, as FORMAT.md draws them: header and slot heads, encoded, decoded, refused.
// May depend on: base, layout, store.h. Used by store_file.cc and directory.cc.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "base/fs.h"
#include "kvcache/store.h"

namespace kvart {

constexpr uint64_t kPageFileHeaderBytes = 16384;
constexpr uint64_t kUsedHintOffset = 144;
constexpr uint64_t kWriterLock = 0, kFirstSlotLock = 1;  // bytes to lock: the writer's, slot 0's and so on
constexpr uint64_t kLastUseOffset = 88;                  // in a slot

struct PageFileHeader {
  uint64_t slot_bytes = 0;
  uint32_t n_layers = 0, n_kv_heads = 0, head_dim = 0, page_tokens = 0, sinks = 0;
  std::string k_format, v_format;
  std::array<uint8_t, 32> fingerprint{};
  uint64_t used_hint = 0;

  // Where things lie.
  uint64_t SlotOffset(uint64_t slot) const { return kPageFileHeaderBytes + slot * slot_bytes; }
  uint64_t SlotsIn(uint64_t file_bytes) const {
    return file_bytes < kPageFileHeaderBytes ? 0 : (file_bytes - kPageFileHeaderBytes) / slot_bytes;
  }
  size_t HeadBytes() const { return SlotHeadBytes(static_cast<int>(page_tokens)); }
  uint64_t PayloadOffset() const { return kvart::PayloadOffset(static_cast<int>(page_tokens)); }  // in a slot
  uint64_t MostPayload() const { return slot_bytes - PayloadOffset(); }
};

// InvalidArgument where a number is out of range.
Result<PageFileHeader> MakePageFileHeader(const KvGeometry& geometry, const StoreOptions& options);

std::vector<uint8_t> EncodePageFileHeader(const PageFileHeader& header);  // 156 bytes
// Whether kvart made the file: it has the magic, or was never finished.
Result<bool> IsPageFile(const RandomFile& file);
// Reads the header of a file. Refuses, naming what was found and what was wanted, what is not a page store of this
// version and machine, and what is damaged.
Result<PageFileHeader> ReadPageFileHeader(const RandomFile& file);
// InvalidArgument naming the first thing that differs.
Status CheckSameStore(const std::string& path, const PageFileHeader& found, const PageFileHeader& wanted);
struct OpenedPageFile {
  std::shared_ptr<RandomFile> file;
  bool writer = false;   // holds the writer's lock
  bool created = false;  // just made, with the header that was wanted
};
// The file, made where it was missing or not finished, with the writer's lock where that is to be had. Its header is
// still to be read.
Result<OpenedPageFile> OpenPageFile(FileSystem& files, const std::string& path, const PageFileHeader& wanted);

struct StoredHead {
  SlotHead head;
  uint64_t payload_bytes = 0;
  uint32_t payload_crc = 0, head_crc = 0;
  int64_t last_use = 0;
};
std::vector<uint8_t> EncodeHead(const PageFileHeader& header,
                                const StoredHead& head);  // HeadBytes(); sets no checksum but the head's
// Nothing where the checksum or a number is wrong, or the slot is free; *free says whether it is all zero up to its
// ids.
std::optional<StoredHead> DecodeHead(const PageFileHeader& header, std::span<const uint8_t> bytes, bool* free);

// A slot's head in a file; nothing where it can't be read, too.
std::optional<StoredHead> ReadHead(const RandomFile& file, const PageFileHeader& header, uint64_t slot, bool* free);
// Whether the payload has the checksum that its head gives. Read, not mapped: a file that is cut off meanwhile is no
// signal.
bool IsPayloadIntact(const RandomFile& file, const PageFileHeader& header, uint64_t slot, const StoredHead& head);

std::string Hex(std::span<const uint8_t> bytes);

}  // namespace kvart

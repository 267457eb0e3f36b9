// What a K/V directory holds, for people: list, verify, remove, clear. The stores may be in use meanwhile.
// May depend on: base, store.h, page_file.h. Used by the command line.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <vector>

#include "base/fs.h"
#include "base/status.h"

namespace kvart {

struct StoreInfo {
  std::string file;         // its name in the directory
  uint64_t bytes = 0;       // with its index
  int64_t last_use = 0;     // seconds since 1970: of any page, or when the file was last written
  bool busy = false;        // a process writes to it
  Status problem;           // why it can't be read, if so; then the rest is not known
  std::string fingerprint;  // of the model and the numerics, in hex
  std::string k_format, v_format;
  uint32_t n_layers = 0, n_kv_heads = 0, head_dim = 0, page_tokens = 0, sinks = 0;
  uint64_t slot_bytes = 0, slots = 0;
  uint64_t pages = 0, sink_records = 0;   // slots in use
  uint64_t damaged = 0;                   // heads that fail their checksum; after Verify, payloads too
  std::vector<uint64_t> damaged_offsets;  // where in the file; the first hundred
};

struct ClearReport {
  uint64_t removed_files = 0, removed_bytes = 0, kept_bytes = 0;
  uint64_t busy_files = 0;  // kept because somebody uses them
};

class KvDirectory {
 public:
  // files must outlive this.
  KvDirectory(FileSystem& files, std::string directory) : files_(files), directory_(std::move(directory)) {}

  // Only regular files named <16 hex digits>.pages that have a store's magic, or were never finished, are stores;
  // nothing else is listed or removed.
  // Every store, from the slots' heads alone. None where there is no directory.
  Result<std::vector<StoreInfo>> List();
  // One store with every payload's checksum. A damaged slot is only reported: whoever uses the store next takes it as
  // free. The slots of a busy store may change while they are read, so what looks damaged there may just be in the
  // making.
  Result<StoreInfo> Verify(const std::string& file);
  // The store and its index. kBusy where a process has it open for writing; readers keep what they have open.
  Status Remove(const std::string& file);
  // Removes stores, the longest unused first, until what is left takes keep_bytes at most. A store is removed whole or
  // not at all.
  Result<ClearReport> Clear(uint64_t keep_bytes);

 private:
  Result<bool> IsRegular(const std::string& name);
  StoreInfo Look(const std::string& file, bool payloads);
  Status Scan(const std::string& path, bool payloads, StoreInfo* info);

  FileSystem& files_;
  const std::string directory_;
};

}  // namespace kvart

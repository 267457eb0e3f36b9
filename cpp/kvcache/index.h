// The index file of a page store: from names to slots, by linear probing in the file itself, so that opening it costs
// nothing. A hint: whoever gets a slot from it looks at the slot's head. May depend on: base, store.h. FORMAT.md draws
// the bytes. Used by store_file.cc.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "base/fs.h"
#include "kvcache/store.h"

namespace kvart {

// Not thread-safe: the store's lock covers it.
class SlotIndex {
 public:
  struct Entry {
    uint64_t key;  // KeyOf a name
    uint32_t slot;
  };
  static uint64_t KeyOf(const PageName& name);  // its first 8 bytes; 1 where they are zero

  static Result<bool> IsIndexFile(const RandomFile& file);  // it has the magic, or was never finished

  SlotIndex(FileSystem& files, std::string path) : files_(files), path_(std::move(path)) {}

  // kNotFound when there is no file, kCorrupt when it is not an index: the writer then calls Rebuild, a reader sees
  // nothing for now.
  Status Open(bool writable);
  // A new file with these entries and room for n_slots, in place of what is there.
  Status Rebuild(const std::vector<Entry>& entries, uint64_t n_slots);
  // A larger file where n_slots do not fit well any more.
  Status Reserve(uint64_t n_slots);

  // Calls is_it for each slot that may hold the name, until it says yes. False when none did. A reader follows the
  // writer to a new file.
  bool Find(const PageName& name, const std::function<bool(uint32_t slot)>& is_it);
  // kCorrupt when the file is so full of strangers that it has to be rebuilt.
  Status Insert(const PageName& name, uint32_t slot);
  Status Remove(const PageName& name, uint32_t slot);

  const std::shared_ptr<RandomFile>& file() const { return file_; }  // to be synced; nullptr when there is none

 private:
  uint64_t entries() const { return uint64_t{1} << log2_; }
  Status ReadEntry(uint64_t at, Entry* entry) const;
  Status WriteEntry(uint64_t at, const Entry& entry);
  bool Probe(uint64_t key, const std::function<bool(uint32_t slot)>& is_it);
  bool Replaced() const;

  FileSystem& files_;
  const std::string path_;
  std::shared_ptr<RandomFile> file_;
  bool writable_ = false;
  uint32_t log2_ = 0;
};

}  // namespace kvart

// Files that are written: everything that the cache keeps goes through these two interfaces, so that a test can put a
// file system behind them that stops, tears, fills up or forgets. May depend on: status. Next for the token:
// kvcache/store.h.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "base/status.h"

namespace kvart {

// An open file. Closed, and its locks given back, when it is destroyed. All calls may come from any thread.
class RandomFile {
 public:
  virtual ~RandomFile() = default;

  virtual const std::string& path() const = 0;
  virtual Result<uint64_t> Size() const = 0;
  // All n bytes: kCorrupt where the file ends before them.
  virtual Status Read(uint64_t offset, void* to, size_t n) const = 0;
  // All n bytes, in one call to the system unless that takes fewer. kNoSpace where the disk is full. On failure any
  // part may have been written.
  virtual Status Write(uint64_t offset, const void* from, size_t n) = 0;
  // Space on the disk for these bytes; the file is as long as they reach, at least, and reads as zero where it was not
  // written.
  virtual Status Allocate(uint64_t offset, uint64_t n) = 0;
  virtual Status Truncate(uint64_t size) = 0;
  // What was written before survives a power cut.
  virtual Status Sync() = 0;
  // These bytes, read-only, showing what is written later too. They may lie behind the end: they may be touched once
  // the file reaches them. Touching what is behind the end raises SIGBUS. Any offset; outlives the file.
  virtual Result<std::shared_ptr<const uint8_t>> Map(uint64_t offset, size_t n) const = 0;

  // A lock on one byte, which need not be there: a number that processes agree on. Held by this open file and by nobody
  // else in any process, this one included. kBusy at once where another holds it. Exclusive needs a file open for
  // writing.
  virtual Status TryLock(uint64_t byte, bool exclusive) = 0;
  virtual void Unlock(uint64_t byte) = 0;
  // Whether another open file holds the byte for itself alone. Takes no lock, so nobody is kept out meanwhile.
  virtual bool IsLocked(uint64_t byte) const = 0;
  // Whether the path still names this very file; not when it was removed or replaced.
  virtual bool IsAt(const std::string& path) const = 0;
};

enum class OpenMode {
  kRead,
  kWrite,    // and read
  kCreate,   // and make it where it is missing, for this user only
  kReplace,  // and empty it
};

struct FileInfo {
  uint64_t bytes = 0;
  int64_t modified = 0;  // seconds since 1970
};

// Thread-safe.
class FileSystem {
 public:
  virtual ~FileSystem() = default;

  virtual Result<std::shared_ptr<RandomFile>> Open(const std::string& path, OpenMode mode) = 0;
  virtual Result<FileInfo> Info(const std::string& path) = 0;
  virtual Status Rename(const std::string& from, const std::string& to) = 0;  // over what is there
  virtual Status Remove(const std::string& path) = 0;
  virtual Result<std::vector<std::string>> List(
      const std::string& directory) = 0;                        // names of its regular files, sorted; no links
  virtual Status MakeDirectories(const std::string& path) = 0;  // with those above it; for this user only
  // Names that were made, changed or removed in the directory survive a power cut.
  virtual Status SyncDirectory(const std::string& path) = 0;
  virtual int64_t Now() = 0;  // seconds since 1970
};

// The system's own.
FileSystem& SystemFiles();

// This process, to tell a forked child from its parent.
int64_t ProcessId();

}  // namespace kvart

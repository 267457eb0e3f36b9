// The session journal: the token ids of a named session, on disk before their text is shown. FORMAT.md, "The session",
// draws the bytes. May depend on: base. Next for the token: engine/ appends ids here, and replays them when the session
// is opened again.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "base/fs.h"
#include "base/status.h"
#include "kvcache/background.h"

namespace kvart {

// The store that a session's pages lie in.
struct StoreIdentity {
  std::array<uint8_t, 32> fingerprint{};
  std::string k_format, v_format;
  bool operator==(const StoreIdentity&) const = default;
};

struct JournalOptions {
  StoreIdentity store;
  FileSystem* files = nullptr;  // must outlive the journal; nullptr: the system's
  int sync_ms = 500;            // what was written is synced in the background so much later; 0: only by Sync and Close
};

// The newest tokens' K/V as a clean close left them: opaque bytes.
struct OpenPage {
  uint64_t first = 0;  // position of its first token
  uint64_t tokens = 0;
  std::vector<uint8_t> bytes;
};

// What a journal held when it was opened.
struct Replay {
  bool created = false;  // it was not there
  std::vector<int32_t> ids;
  std::optional<OpenPage> open_page;  // only when it belongs to the end of ids and to the store that was wanted
  StoreIdentity store;                // where its pages were; the ids are good whatever this says
  uint64_t cut_bytes = 0;             // behind the last whole record: not finished, or damaged; not read
  bool damaged = false;  // they are more than one unfinished record: the first write saves them as .session.damaged
};

struct SessionInfo {
  std::string name;
  uint64_t bytes = 0;
  uint64_t tokens = 0;
  uint64_t cut_bytes = 0;  // as in Replay
  int64_t modified = 0;    // seconds since 1970
  bool busy = false;       // a process has it open
  StoreIdentity store;
  Status problem;  // why it can't be read, if so; then the rest is not known
};

// kInvalidArgument unless the name is 1 to 100 of A-Z a-z 0-9 . _ - and begins with a letter or digit.
Status CheckSessionName(const std::string& name);

// Open for this process alone. Not thread-safe: the session's lock covers it. In a forked child: destroy it, or
// nothing.
class Journal {
 public:
  // directory/<name>.session, made when missing. kBusy names the process that has it, where that is known. Changes
  // nothing in what was there but the process's number: what a new store or a bad tail needs waits for the first write.
  static Result<std::unique_ptr<Journal>> Open(const std::string& directory, const std::string& name,
                                               const JournalOptions& options, Replay* replay);
  ~Journal();  // syncs, writes nothing

  // Each is one write. On failure the journal is as before, and may be tried again.
  Status Append(std::span<const int32_t> ids);
  Status Rewind(uint64_t tokens);              // how many stay; at most tokens()
  Status WriteOpenPage(const OpenPage& page);  // the next Append or Rewind takes it away again
  Status Sync();                               // what was written survives a power cut

  uint64_t tokens() const { return tokens_; }
  const std::string& path() const { return file_->path(); }

  // Sessions in a directory, by name; none where there is no directory. What has no session's magic is no session,
  // unless it was never finished: it is neither listed nor removed.
  static Result<std::vector<SessionInfo>> List(FileSystem& files, const std::string& directory);
  // With the bytes that were cut off it.
  static Status Remove(FileSystem& files, const std::string& directory, const std::string& name);

 private:
  Journal(FileSystem& files, std::shared_ptr<RandomFile> file, int sync_ms);
  Status BeginWrite();
  Status CutTail();
  Status WriteRecord(uint32_t kind, std::span<const uint8_t> payload);
  Status DropOpenPage();
  Status CheckProcess() const;

  FileSystem& files_;
  const std::shared_ptr<RandomFile> file_;
  const int64_t process_;
  uint64_t end_ = 0;                         // of the last whole record
  std::optional<uint64_t> open_page_start_;  // the last record is an open page
  uint64_t tokens_ = 0;
  uint64_t cut_bytes_ = 0;  // behind end_ when it was opened, still there
  bool damaged_ = false;
  std::optional<StoreIdentity> new_store_;  // still to be written
  BackgroundSync background_;
};

}  // namespace kvart

// A file system in memory that goes wrong on demand: stops at the n-th operation and tears it, runs full, loses or
// reorders what was not synced, drops syncs. Locks work as the real ones do, between open files.
#pragma once

#include <sys/mman.h>

#include <algorithm>
#include <cstring>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <random>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "base/fs.h"

namespace kvart {

class FakeFiles : public FileSystem {
 public:
  static constexpr size_t kMostBytes = 16 << 20;  // of a file: its memory never moves, so that it can be mapped

  // ---- What goes wrong. Operations are all that change something: writes, allocations, truncations, syncs, renames,
  // removals, creations.
  int64_t operations = 0;   // so far
  int64_t stop_at = -1;     // this one is torn (a part of it happens) and all after it fail: the process is gone
  int64_t fail_at = -1;     // this one, if it needs room, is torn and fails with kNoSpace …
  int64_t fail_count = 1;   // … and so do those after it, so many in all
  bool drop_syncs = false;  // syncs succeed and do nothing
  int64_t now = 1'000'000;  // the clock
  std::mt19937 random{1};

  // After the process was killed: what it wrote is there. Locks are gone, the stop is lifted.
  void Reboot() {
    const std::lock_guard<std::mutex> lock(mutex_);
    stop_at = fail_at = -1;
    for (auto& [path, node] : nodes_) node->locks.clear();
  }

  // After a power cut: of what was not synced some writes are there, some in part, some not, in no order.
  void PowerCut() {
    {
      const std::lock_guard<std::mutex> lock(mutex_);
      for (auto& [path, node] : nodes_) {
        std::vector<uint8_t> disk = node->durable;
        for (const Pending& op : node->pending) {
          const uint32_t fate = random() % 4;
          if (fate == 0) continue;
          if (op.truncate) {
            disk.resize(op.offset);
            continue;
          }
          size_t from = 0, to = op.bytes.size();
          if (fate == 1 && to > 0) {  // torn: a piece from anywhere within
            from = random() % to;
            to = from + random() % (to - from + 1);
          }
          if (disk.size() < op.offset + to) disk.resize(op.offset + to);
          std::copy(op.bytes.begin() + static_cast<ptrdiff_t>(from), op.bytes.begin() + static_cast<ptrdiff_t>(to),
                    disk.begin() + static_cast<ptrdiff_t>(op.offset + from));
        }
        auto fresh = std::make_shared<Node>();
        fresh->Assign(disk);
        fresh->modified = node->modified;
        node = fresh;
      }
    }
    Reboot();
  }

  // ---- Looking at files and damaging them.
  std::vector<uint8_t> Contents(const std::string& path) {
    const std::lock_guard<std::mutex> lock(mutex_);
    const auto found = nodes_.find(path);
    if (found == nodes_.end()) return {};
    return {found->second->data.get(), found->second->data.get() + found->second->size};
  }
  // A new file by that name: whoever has the old one open does not see it.
  void SetContents(const std::string& path, const std::vector<uint8_t>& bytes) {
    const std::lock_guard<std::mutex> lock(mutex_);
    auto node = std::make_shared<Node>();
    node->Assign(bytes);
    nodes_[path] = node;
  }
  // In place, seen by whoever has it open.
  void Flip(const std::string& path, size_t byte, uint8_t mask) {
    const std::lock_guard<std::mutex> lock(mutex_);
    nodes_.at(path)->data.get()[byte] ^= mask;
  }
  void Cut(const std::string& path, size_t size) {
    const std::lock_guard<std::mutex> lock(mutex_);
    nodes_.at(path)->size = size;
  }
  bool Exists(const std::string& path) {
    const std::lock_guard<std::mutex> lock(mutex_);
    return nodes_.contains(path);
  }
  std::vector<std::string> Paths() {
    const std::lock_guard<std::mutex> lock(mutex_);
    std::vector<std::string> paths;
    for (const auto& [path, node] : nodes_) paths.push_back(path);
    return paths;
  }

  // ---- FileSystem.
  Result<std::shared_ptr<RandomFile>> Open(const std::string& path, OpenMode mode) override {
    const std::lock_guard<std::mutex> lock(mutex_);
    const auto found = nodes_.find(path);
    std::shared_ptr<Node> node = found == nodes_.end() ? nullptr : found->second;
    if (node == nullptr && mode != OpenMode::kCreate && mode != OpenMode::kReplace) return Missing(path);
    if (node == nullptr || (mode == OpenMode::kReplace && node->size > 0)) {
      if (const auto [status, part] = Operation(path, 1, false); !status.ok()) return status;
      if (node == nullptr) nodes_[path] = node = std::make_shared<Node>();
      if (node->size > 0) node->Truncate(0);
    }
    return std::shared_ptr<RandomFile>(std::make_shared<File>(*this, node, path, mode != OpenMode::kRead));
  }
  Result<FileInfo> Info(const std::string& path) override {
    const std::lock_guard<std::mutex> lock(mutex_);
    const auto found = nodes_.find(path);
    if (found == nodes_.end()) return Missing(path);
    return FileInfo{found->second->size, found->second->modified};
  }
  Status Rename(const std::string& from, const std::string& to) override {
    const std::lock_guard<std::mutex> lock(mutex_);
    if (!nodes_.contains(from)) return Missing(from);
    if (const auto [status, part] = Operation(from, 1, false); !status.ok()) return status;
    nodes_[to] = nodes_[from];
    nodes_.erase(from);
    return Status::Ok();
  }
  Status Remove(const std::string& path) override {
    const std::lock_guard<std::mutex> lock(mutex_);
    if (!nodes_.contains(path)) return Missing(path);
    if (const auto [status, part] = Operation(path, 1, false); !status.ok()) return status;
    nodes_.erase(path);
    return Status::Ok();
  }
  Result<std::vector<std::string>> List(const std::string& directory) override {
    const std::lock_guard<std::mutex> lock(mutex_);
    if (!directories_.contains(directory)) return Missing(directory);
    std::vector<std::string> names;
    const std::string prefix = directory + "/";
    for (const auto& [path, node] : nodes_) {
      if (path.starts_with(prefix) && path.find('/', prefix.size()) == std::string::npos)
        names.push_back(path.substr(prefix.size()));
    }
    return names;
  }
  Status MakeDirectories(const std::string& path) override {
    const std::lock_guard<std::mutex> lock(mutex_);
    for (size_t end = path.find('/', 1);; end = path.find('/', end + 1)) {
      directories_.insert(path.substr(0, end));
      if (end == std::string::npos) return Status::Ok();
    }
  }
  Status SyncDirectory(const std::string&) override { return Status::Ok(); }  // names are durable at once here
  int64_t Now() override { return now; }

 private:
  struct Pending {
    bool truncate;
    uint64_t offset;
    std::vector<uint8_t> bytes;
  };
  struct Node {
    std::shared_ptr<uint8_t> data{
        static_cast<uint8_t*>(mmap(nullptr, kMostBytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0)),
        [](uint8_t* p) { munmap(p, kMostBytes); }};
    uint64_t size = 0;
    int64_t modified = 0;
    std::vector<uint8_t> durable;
    std::vector<Pending> pending;
    std::map<uint64_t, std::map<const void*, bool>> locks;  // byte → holders, and whether it is theirs alone

    void Assign(const std::vector<uint8_t>& bytes) {
      std::copy(bytes.begin(), bytes.end(), data.get());
      size = bytes.size();
      durable = bytes;
      pending.clear();
    }
    void Write(uint64_t offset, const uint8_t* from, size_t n) {
      std::memcpy(data.get() + offset, from, n);
      size = std::max<uint64_t>(size, offset + n);
      pending.push_back({false, offset, {from, from + n}});
    }
    void Truncate(uint64_t to) {
      if (to < size) std::memset(data.get() + to, 0, size - to);
      size = to;
      pending.push_back({true, to, {}});
    }
    void Sync() {
      durable.assign(data.get(), data.get() + size);
      pending.clear();
    }
  };

  class File : public RandomFile {
   public:
    File(FakeFiles& files, std::shared_ptr<Node> node, std::string path, bool writable)
        : files_(files), node_(std::move(node)), path_(std::move(path)), writable_(writable) {}
    ~File() override {
      const std::lock_guard<std::mutex> lock(files_.mutex_);
      for (auto& [byte, holders] : node_->locks) holders.erase(this);
    }
    const std::string& path() const override { return path_; }
    Result<uint64_t> Size() const override {
      const std::lock_guard<std::mutex> lock(files_.mutex_);
      return node_->size;
    }
    Status Read(uint64_t offset, void* to, size_t n) const override {
      const std::lock_guard<std::mutex> lock(files_.mutex_);
      if (offset > node_->size || n > node_->size - offset)
        return Status(StatusCode::kCorrupt, path_ + " ends too soon", path_);
      std::memcpy(to, node_->data.get() + offset, n);
      return Status::Ok();
    }
    Status Write(uint64_t offset, const void* from, size_t n) override {
      const std::lock_guard<std::mutex> lock(files_.mutex_);
      if (!writable_) return Status(StatusCode::kIo, path_ + " is not open for writing", path_);
      if (offset > kMostBytes || n > kMostBytes - offset)
        return Status(StatusCode::kNoSpace, path_ + " is too large", path_);
      const auto [status, part] = files_.Operation(path_, n, true);
      if (part > 0) node_->Write(offset, static_cast<const uint8_t*>(from), part);
      node_->modified = files_.now;
      return status;
    }
    Status Allocate(uint64_t offset, uint64_t n) override {
      const std::lock_guard<std::mutex> lock(files_.mutex_);
      if (offset > kMostBytes || n > kMostBytes - offset)
        return Status(StatusCode::kNoSpace, path_ + " is too large", path_);
      const auto [status, part] = files_.Operation(path_, n, true);
      if (offset + part > node_->size) {
        const std::vector<uint8_t> zeros(offset + part - node_->size);
        node_->Write(node_->size, zeros.data(), zeros.size());
      }
      return status;
    }
    Status Truncate(uint64_t size) override {
      const std::lock_guard<std::mutex> lock(files_.mutex_);
      const auto [status, part] = files_.Operation(path_, 1, false);
      if (part > 0) node_->Truncate(size);
      return status;
    }
    Status Sync() override {
      const std::lock_guard<std::mutex> lock(files_.mutex_);
      if (const auto [status, part] = files_.Operation(path_, 1, false); !status.ok()) return status;
      if (!files_.drop_syncs) node_->Sync();
      return Status::Ok();
    }
    Result<std::shared_ptr<const uint8_t>> Map(uint64_t offset, size_t) const override {
      return std::shared_ptr<const uint8_t>(node_->data, node_->data.get() + offset);
    }
    Status TryLock(uint64_t byte, bool exclusive) override {
      const std::lock_guard<std::mutex> lock(files_.mutex_);
      auto& holders = node_->locks[byte];
      for (const auto& [holder, alone] : holders) {
        if (holder != this && (alone || exclusive)) return Status(StatusCode::kBusy, path_ + " is in use", path_);
      }
      holders[this] = exclusive;
      return Status::Ok();
    }
    void Unlock(uint64_t byte) override {
      const std::lock_guard<std::mutex> lock(files_.mutex_);
      node_->locks[byte].erase(this);
    }
    bool IsLocked(uint64_t byte) const override {
      const std::lock_guard<std::mutex> lock(files_.mutex_);
      const auto& holders = node_->locks[byte];
      return std::any_of(holders.begin(), holders.end(), [this](const auto& h) { return h.first != this && h.second; });
    }
    bool IsAt(const std::string& path) const override {
      const std::lock_guard<std::mutex> lock(files_.mutex_);
      const auto found = files_.nodes_.find(path);
      return found != files_.nodes_.end() && found->second == node_;
    }

   private:
    FakeFiles& files_;
    const std::shared_ptr<Node> node_;
    const std::string path_;
    const bool writable_;
  };

  static Status Missing(const std::string& path) { return Status(StatusCode::kNotFound, path + " is not there", path); }

  // Counts an operation of n bytes; how it ends and how much of it happens.
  std::pair<Status, size_t> Operation(const std::string& path, size_t n, bool needs_room) {
    const int64_t at = operations++;
    if (stop_at >= 0 && at >= stop_at) {
      const size_t part = at == stop_at && n > 1 ? random() % (n + 1) : 0;
      return {Status(StatusCode::kIo, path + ": stopped", path), part};
    }
    if (needs_room && fail_at >= 0 && at >= fail_at && at < fail_at + fail_count) {
      return {Status(StatusCode::kNoSpace, path + ": no space left", path), random() % (n + 1)};
    }
    return {Status::Ok(), n};
  }

  std::mutex mutex_;
  std::map<std::string, std::shared_ptr<Node>> nodes_;
  std::set<std::string> directories_;
};

}  // namespace kvart

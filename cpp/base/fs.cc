#ifndef _GNU_SOURCE
#define _GNU_SOURCE  // F_OFD_SETLK
#endif
#include "base/fs.h"

#include <dirent.h>
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <ctime>
#include <utility>

namespace kvart {
namespace {

static_assert(sizeof(off_t) == 8, "files of more than 2 GiB");

Status SystemError(const char* what, const std::string& path, int error, int64_t offset = Status::kNoOffset) {
  StatusCode code = StatusCode::kIo;
  if (error == ENOENT || error == ENOTDIR) code = StatusCode::kNotFound;
  if (error == ENOMEM) code = StatusCode::kOutOfMemory;
  if (error == ENOSPC || error == EDQUOT || error == EFBIG) code = StatusCode::kNoSpace;
  std::string message = std::string("cannot ") + what + " " + path;
  if (offset != Status::kNoOffset) message += " at " + std::to_string(offset);
  return Status(code, message + ": " + std::strerror(error), path, offset);
}

struct flock LockOf(short type, uint64_t byte) {
  struct flock lock {};
  lock.l_type = type;
  lock.l_whence = SEEK_SET;
  lock.l_start = static_cast<off_t>(byte);
  lock.l_len = 1;
  return lock;
}

// Where the kernel has locks that belong to an open file, those; elsewhere the process's, which two stores in one
// process do not see.
int SetLock(int fd, short type, uint64_t byte) {
  struct flock lock = LockOf(type, byte);
#ifdef F_OFD_SETLK
  if (fcntl(fd, F_OFD_SETLK, &lock) == 0) return 0;
  if (errno != EINVAL) return errno;
#endif
  return fcntl(fd, F_SETLK, &lock) == 0 ? 0 : errno;
}

class PosixFile : public RandomFile {
 public:
  PosixFile(int fd, std::string path) : fd_(fd), path_(std::move(path)) {}
  ~PosixFile() override { close(fd_); }

  const std::string& path() const override { return path_; }

  Result<uint64_t> Size() const override {
    struct stat info {};
    if (fstat(fd_, &info) != 0) return SystemError("stat", path_, errno);
    return static_cast<uint64_t>(info.st_size);
  }

  Status Read(uint64_t offset, void* to, size_t n) const override {
    uint8_t* p = static_cast<uint8_t*>(to);
    for (size_t done = 0; done < n;) {
      const ssize_t got = pread(fd_, p + done, n - done, static_cast<off_t>(offset + done));
      if (got < 0 && errno == EINTR) continue;
      if (got < 0) return SystemError("read", path_, errno, static_cast<int64_t>(offset));
      if (got == 0) {
        return Status(StatusCode::kCorrupt,
                      path_ + " ends at " + std::to_string(offset + done) + "; " + std::to_string(n) + " bytes at " +
                          std::to_string(offset) + " were wanted",
                      path_, static_cast<int64_t>(offset));
      }
      done += static_cast<size_t>(got);
    }
    return Status::Ok();
  }

  Status Write(uint64_t offset, const void* from, size_t n) override {
    const uint8_t* p = static_cast<const uint8_t*>(from);
    for (size_t done = 0; done < n;) {
      const ssize_t put = pwrite(fd_, p + done, n - done, static_cast<off_t>(offset + done));
      if (put < 0 && errno == EINTR) continue;
      if (put <= 0) return SystemError("write", path_, put < 0 ? errno : ENOSPC, static_cast<int64_t>(offset));
      done += static_cast<size_t>(put);
    }
    return Status::Ok();
  }

  Status Allocate(uint64_t offset, uint64_t n) override {
    int error = 0;
    do {
      error = posix_fallocate(fd_, static_cast<off_t>(offset), static_cast<off_t>(n));
    } while (error == EINTR);
    if (error == 0) return Status::Ok();
    if (error != EOPNOTSUPP && error != EINVAL && error != ENOSYS) {
      return SystemError("make room in", path_, error, static_cast<int64_t>(offset));
    }
    // A file system that cannot: what is behind the end is written as zeros. What is before it was written or allocated
    // already.
    KVART_ASSIGN_OR_RETURN(uint64_t at, Size());
    const std::vector<uint8_t> zeros(std::min<uint64_t>(n, 1 << 20));
    for (at = std::max(at, offset); at < offset + n;) {
      const size_t step = static_cast<size_t>(std::min<uint64_t>(zeros.size(), offset + n - at));
      KVART_RETURN_IF_ERROR(Write(at, zeros.data(), step));
      at += step;
    }
    return Status::Ok();
  }

  Status Truncate(uint64_t size) override {
    if (ftruncate(fd_, static_cast<off_t>(size)) != 0)
      return SystemError("truncate", path_, errno, static_cast<int64_t>(size));
    return Status::Ok();
  }

  Status Sync() override {
#ifdef __APPLE__
    const int failed = fsync(fd_);
#else
    const int failed = fdatasync(fd_);
#endif
    return failed == 0 ? Status::Ok() : SystemError("sync", path_, errno);
  }

  Result<std::shared_ptr<const uint8_t>> Map(uint64_t offset, size_t n) const override {
    const uint64_t page = static_cast<uint64_t>(sysconf(_SC_PAGESIZE));
    const size_t before = static_cast<size_t>(offset % page), bytes = n + before;
    void* data = mmap(nullptr, bytes, PROT_READ, MAP_SHARED, fd_, static_cast<off_t>(offset - before));
    if (data == MAP_FAILED) return SystemError("map", path_, errno, static_cast<int64_t>(offset));
    const std::shared_ptr<void> owner(data, [bytes](void* p) { munmap(p, bytes); });
    return std::shared_ptr<const uint8_t>(owner, static_cast<const uint8_t*>(data) + before);
  }

  Status TryLock(uint64_t byte, bool exclusive) override {
    const int error = SetLock(fd_, exclusive ? F_WRLCK : F_RDLCK, byte);
    if (error == 0) return Status::Ok();
    if (error == EAGAIN || error == EACCES) {
      return Status(StatusCode::kBusy, path_ + " is in use by another process", path_, static_cast<int64_t>(byte));
    }
    return SystemError("lock", path_, error, static_cast<int64_t>(byte));
  }
  void Unlock(uint64_t byte) override {
    SetLock(fd_, F_UNLCK, byte);
  }
  bool IsLocked(uint64_t byte) const override {
    struct flock lock = LockOf(F_RDLCK, byte);
#ifdef F_OFD_GETLK
    if (fcntl(fd_, F_OFD_GETLK, &lock) == 0) return lock.l_type != F_UNLCK;
    lock = LockOf(F_RDLCK, byte);
#endif
    return fcntl(fd_, F_GETLK, &lock) == 0 && lock.l_type != F_UNLCK;
  }

  bool IsAt(const std::string& path) const override {
    struct stat mine {
    }, there{};
    return fstat(fd_, &mine) == 0 && stat(path.c_str(), &there) == 0 && mine.st_dev == there.st_dev &&
           mine.st_ino == there.st_ino;
  }

 private:
  const int fd_;
  const std::string path_;
};

class PosixFiles : public FileSystem {
 public:
  Result<std::shared_ptr<RandomFile>> Open(const std::string& path, OpenMode mode) override {
    int flags = mode == OpenMode::kRead ? O_RDONLY : O_RDWR;
    if (mode == OpenMode::kCreate) flags |= O_CREAT;
    if (mode == OpenMode::kReplace) flags |= O_CREAT | O_TRUNC;
    const int fd =
        open(path.c_str(), flags | O_CLOEXEC | O_NONBLOCK, 0600);  // O_NONBLOCK: a pipe by that name must not hang us
    if (fd < 0) return SystemError("open", path, errno);
    struct stat info {};
    if (fstat(fd, &info) != 0 || !S_ISREG(info.st_mode)) {
      close(fd);
      return Status(StatusCode::kInvalidArgument, path + " is not a regular file", path);
    }
    return std::shared_ptr<RandomFile>(std::make_shared<PosixFile>(fd, path));
  }

  Result<FileInfo> Info(const std::string& path) override {
    struct stat info {};
    if (stat(path.c_str(), &info) != 0) return SystemError("stat", path, errno);
    return FileInfo{static_cast<uint64_t>(info.st_size), static_cast<int64_t>(info.st_mtime)};
  }

  Status Rename(const std::string& from, const std::string& to) override {
    if (rename(from.c_str(), to.c_str()) != 0) return SystemError("rename", from, errno);
    return Status::Ok();
  }

  Status Remove(const std::string& path) override {
    if (unlink(path.c_str()) != 0) return SystemError("remove", path, errno);
    return Status::Ok();
  }

  Result<std::vector<std::string>> List(const std::string& directory) override {
    DIR* stream = opendir(directory.c_str());
    if (stream == nullptr) return SystemError("list", directory, errno);
    std::vector<std::string> names;
    while (const dirent* entry = readdir(stream)) {
      struct stat info {};
      const std::string name = entry->d_name;
      if (lstat((directory + "/" + name).c_str(), &info) == 0 && S_ISREG(info.st_mode)) names.push_back(name);
    }
    closedir(stream);
    std::sort(names.begin(), names.end());
    return names;
  }

  Status MakeDirectories(const std::string& path) override {
    for (size_t end = path.find('/', 1);; end = path.find('/', end + 1)) {
      const std::string part = path.substr(0, end);
      if (mkdir(part.c_str(), 0700) != 0 && errno != EEXIST) {
        const int error = errno;
        struct stat info {};
        if (stat(part.c_str(), &info) != 0) return SystemError("make directory", part, error);
      }
      if (end == std::string::npos) break;
    }
    struct stat info {};
    if (stat(path.c_str(), &info) != 0) return SystemError("make directory", path, errno);
    if (!S_ISDIR(info.st_mode)) return Status(StatusCode::kInvalidArgument, path + " is not a directory", path);
    return Status::Ok();
  }

  Status SyncDirectory(const std::string& path) override {
    const int fd = open(path.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (fd < 0) return SystemError("open", path, errno);
    const int error = fsync(fd) == 0 ? 0 : errno;
    close(fd);
    // Some file systems have no sync of directories: nothing more can be done there.
    return error == 0 || error == EINVAL || error == EBADF ? Status::Ok() : SystemError("sync", path, error);
  }

  int64_t Now() override { return static_cast<int64_t>(std::time(nullptr)); }
};

}  // namespace

FileSystem& SystemFiles() {
  static PosixFiles* const files = new PosixFiles();  // never destroyed: files may be closed while the process ends
  return *files;
}

int64_t ProcessId() {
  return static_cast<int64_t>(getpid());
}

}  // namespace kvart

#include "base/file.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <utility>

namespace kvart {
namespace {

Status SystemError(const char* what, const std::string& path) {
  const StatusCode code = errno == ENOENT   ? StatusCode::kNotFound
                          : errno == ENOMEM ? StatusCode::kOutOfMemory
                                            : StatusCode::kIo;
  return Status(code, std::string(what) + " " + path + ": " + std::strerror(errno), path);
}

// The whole pages inside [begin, begin + size); size 0 where there is none.
std::pair<void*, size_t> WholePages(const uint8_t* begin, size_t size) {
  const uintptr_t page = static_cast<uintptr_t>(sysconf(_SC_PAGESIZE));
  const uintptr_t first = (reinterpret_cast<uintptr_t>(begin) + page - 1) / page * page;
  const uintptr_t last = (reinterpret_cast<uintptr_t>(begin) + size) / page * page;
  return {reinterpret_cast<void*>(first), last > first ? last - first : 0};
}

}  // namespace

Result<std::shared_ptr<const Mapping>> Mapping::Open(const std::string& path) {
  const int fd = open(path.c_str(), O_RDONLY | O_CLOEXEC);
  if (fd < 0) return SystemError("cannot open", path);
  struct stat info {};
  if (fstat(fd, &info) != 0) {
    const Status status = SystemError("cannot stat", path);
    close(fd);
    return status;
  }
  if (!S_ISREG(info.st_mode)) {
    close(fd);
    return Status(StatusCode::kInvalidArgument, path + " is not a regular file", path);
  }
  auto mapping = std::shared_ptr<Mapping>(new Mapping());
  mapping->path_ = path;
  mapping->size_ = static_cast<size_t>(info.st_size);
  if (mapping->size_ > 0) {
    void* data = mmap(nullptr, mapping->size_, PROT_READ, MAP_SHARED, fd, 0);
    if (data == MAP_FAILED) {
      const Status status = SystemError("cannot map", path);
      mapping->size_ = 0;
      close(fd);
      return status;
    }
    mapping->data_ = static_cast<const uint8_t*>(data);
  }
  close(fd);
  return std::shared_ptr<const Mapping>(std::move(mapping));
}

Mapping::~Mapping() {
  if (size_ > 0) munmap(const_cast<uint8_t*>(data_), size_);
}

void Mapping::Drop(const uint8_t* begin, size_t size) const {
  if (const auto [first, bytes] = WholePages(begin, size); bytes > 0) madvise(first, bytes, MADV_DONTNEED);
}

void Mapping::Prefetch(const uint8_t* begin, size_t size) const {
  if (const auto [first, bytes] = WholePages(begin, size); bytes > 0) madvise(first, bytes, MADV_WILLNEED);
}

}  // namespace kvart

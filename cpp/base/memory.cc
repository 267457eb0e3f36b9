#include "base/memory.h"

#include <sys/mman.h>

#include <cstdlib>
#include <cstring>

namespace kvart {
namespace {

constexpr size_t kSmall = size_t{1} << 16;  // below this the C library's heap serves better than whole pages
constexpr size_t kHugePage = size_t{2} << 20;
constexpr size_t kAlignment = 64;

size_t RoundUp(size_t bytes, size_t to) {
  return (bytes + to - 1) / to * to;
}

class Host final : public Memory {
 public:
  Result<Address> Allocate(size_t bytes) override {
    void* p = nullptr;
    if (bytes == 0) bytes = 1;
    if (bytes > SIZE_MAX / 2) return Refused(bytes);
    if (bytes < kSmall) {
      p = std::aligned_alloc(kAlignment, RoundUp(bytes, kAlignment));
      if (p == nullptr) return Refused(bytes);
      std::memset(p, 0, bytes);
      return AddressOf(p);
    }
    p = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (p == MAP_FAILED) return Refused(bytes);
#ifdef MADV_HUGEPAGE
    if (bytes >= 4 * kHugePage) madvise(p, bytes, MADV_HUGEPAGE);  // a hint: its refusal costs only speed
#endif
    return AddressOf(p);
  }

  void Free(Address address, size_t bytes) override {
    if (address == 0) return;
    if (bytes < kSmall) {
      std::free(HostPointer<void>(address));
    } else {
      munmap(HostPointer<void>(address), bytes);
    }
  }

  Status Write(Address to, const void* from, size_t bytes) override {
    std::memcpy(HostPointer<void>(to), from, bytes);
    return Status::Ok();
  }
  Status Read(void* to, Address from, size_t bytes) const override {
    std::memcpy(to, HostPointer<const void>(from), bytes);
    return Status::Ok();
  }
  Status Copy(Address to, Address from, size_t bytes) override {
    std::memcpy(HostPointer<void>(to), HostPointer<const void>(from), bytes);
    return Status::Ok();
  }

 private:
  static Status Refused(size_t bytes) {
    return Errorf(StatusCode::kOutOfMemory, "out of memory: the system refused %zu bytes", bytes);
  }
};

}  // namespace

Memory& HostMemory() {
  static Host host;
  return host;
}

Result<Block> Block::Allocate(Memory& memory, size_t bytes) {
  KVART_ASSIGN_OR_RETURN(const Address address, memory.Allocate(bytes));
  Block block;
  block.memory_ = &memory;
  block.address_ = address;
  block.bytes_ = bytes;
  return block;
}

void Block::Reset() {
  if (memory_ != nullptr) memory_->Free(address_, bytes_);
  memory_ = nullptr;
  address_ = 0;
  bytes_ = 0;
}

}  // namespace kvart

// Memory: bytes at 64-bit addresses that the host may not be able to touch. Host memory is the plain case (an address
// is a pointer); a device brings its own. May depend on: status. Next for the token: backend/backend.h computes on such
// memory.
#pragma once

#include <cstddef>
#include <cstdint>
#include <utility>

#include "base/status.h"

namespace kvart {

using Address = uint64_t;  // 0 is no address; arithmetic stays inside one allocation

// Implementations are safe to call from any thread; the memory must outlive what was allocated from it.
class Memory {
 public:
  virtual ~Memory() = default;
  // Zeroed, aligned to 64 bytes at least. OutOfMemory names the size asked for.
  virtual Result<Address> Allocate(size_t bytes) = 0;
  virtual void Free(Address address, size_t bytes) = 0;
  virtual Status Write(Address to, const void* from, size_t bytes) = 0;
  virtual Status Read(void* to, Address from, size_t bytes) const = 0;
  virtual Status Copy(Address to, Address from, size_t bytes) = 0;  // ranges must not overlap
};

// Large blocks come from the system in whole pages, huge ones where it has them; freed blocks go back at once.
Memory& HostMemory();

inline Address AddressOf(const void* p) {
  return static_cast<Address>(reinterpret_cast<uintptr_t>(p));
}
template <class T>
T* HostPointer(Address address) {
  return reinterpret_cast<T*>(static_cast<uintptr_t>(address));
}

// Owns one block of a Memory. Move-only.
class Block {
 public:
  Block() = default;
  static Result<Block> Allocate(Memory& memory, size_t bytes);
  ~Block() { Reset(); }
  Block(Block&& other) noexcept { *this = std::move(other); }
  Block& operator=(Block&& other) noexcept {
    if (this != &other) {
      Reset();
      memory_ = std::exchange(other.memory_, nullptr);
      address_ = std::exchange(other.address_, 0);
      bytes_ = std::exchange(other.bytes_, 0);
    }
    return *this;
  }
  void Reset();

  Address address() const { return address_; }
  size_t bytes() const { return bytes_; }
  explicit operator bool() const { return address_ != 0; }

 private:
  Memory* memory_ = nullptr;
  Address address_ = 0;
  size_t bytes_ = 0;
};

}  // namespace kvart

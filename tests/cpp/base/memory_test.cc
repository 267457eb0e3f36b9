// Host memory and the blocks that own it: zeroed, aligned, refused in words, given back.
#include "base/memory.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <set>
#include <string>
#include <utility>
#include <vector>

namespace kvart {
namespace {

// Counts what is out, so that a leak or a double free shows.
class CountingMemory final : public Memory {
 public:
  Result<Address> Allocate(size_t bytes) override {
    auto address = HostMemory().Allocate(bytes);
    if (address.ok()) live_.insert({*address, bytes});
    return address;
  }
  void Free(Address address, size_t bytes) override {
    EXPECT_EQ(live_.erase({address, bytes}), 1u) << "freed twice, or with another size";
    HostMemory().Free(address, bytes);
  }
  Status Write(Address to, const void* from, size_t n) override { return HostMemory().Write(to, from, n); }
  Status Read(void* to, Address from, size_t n) const override { return HostMemory().Read(to, from, n); }
  Status Copy(Address to, Address from, size_t n) override { return HostMemory().Copy(to, from, n); }
  size_t live() const { return live_.size(); }

 private:
  std::set<std::pair<Address, size_t>> live_;
};

TEST(MemoryTest, ZeroedAndAligned) {
  for (const size_t bytes : {size_t{1}, size_t{63}, size_t{64}, size_t{65}, size_t{4096}, size_t{65535}, size_t{65536},
                             size_t{65537}, size_t{1000003}, size_t{9} << 20}) {
    for (int round = 0; round < 2; ++round) {  // the second may get what the first has written on
      auto block = Block::Allocate(HostMemory(), bytes);
      ASSERT_TRUE(block.ok()) << bytes;
      EXPECT_EQ(block->address() % 64, 0u);
      EXPECT_EQ(block->bytes(), bytes);
      uint8_t* data = HostPointer<uint8_t>(block->address());
      for (size_t i = 0; i < bytes; i += bytes < 10000 ? 1 : 997) ASSERT_EQ(data[i], 0) << bytes << " at " << i;
      EXPECT_EQ(data[bytes - 1], 0);
      std::memset(data, 0xab, bytes);
    }
  }
}

TEST(MemoryTest, NothingIsSomething) {  // zero bytes have an address, so that "no address" keeps its meaning
  auto block = Block::Allocate(HostMemory(), 0);
  ASSERT_TRUE(block.ok());
  EXPECT_NE(block->address(), 0u);
  EXPECT_TRUE(static_cast<bool>(*block));
}

TEST(MemoryTest, RefusesWhatThereIsNot) {
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
  constexpr size_t kTooMuch[] = {SIZE_MAX, SIZE_MAX / 2 + 1};  // a sanitizer's allocator stops the program over less
#else
  constexpr size_t kTooMuch[] = {SIZE_MAX, SIZE_MAX - 4095, SIZE_MAX / 2 + 1, SIZE_MAX / 2, size_t{1} << 60};
#endif
  for (const size_t bytes : kTooMuch) {
    const auto block = Block::Allocate(HostMemory(), bytes);
    ASSERT_FALSE(block.ok()) << bytes;
    EXPECT_EQ(block.status().code(), StatusCode::kOutOfMemory);
    EXPECT_NE(block.status().message().find(std::to_string(bytes)), std::string::npos) << block.status().message();
  }
}

TEST(MemoryTest, WriteReadCopy) {
  auto a = Block::Allocate(HostMemory(), 1000), b = Block::Allocate(HostMemory(), 1000);
  ASSERT_TRUE(a.ok() && b.ok());
  std::vector<uint8_t> sent(1000), received(1000);
  for (size_t i = 0; i < sent.size(); ++i) sent[i] = static_cast<uint8_t>(i * 7);
  ASSERT_TRUE(HostMemory().Write(a->address(), sent.data(), 1000).ok());
  ASSERT_TRUE(HostMemory().Copy(b->address() + 10, a->address() + 20, 900).ok());
  ASSERT_TRUE(HostMemory().Read(received.data(), b->address(), 1000).ok());
  EXPECT_EQ(received[9], 0);
  EXPECT_TRUE(std::equal(received.begin() + 10, received.begin() + 910, sent.begin() + 20));
  EXPECT_EQ(received[910], 0);
}

TEST(BlockTest, OwnsOnce) {
  CountingMemory memory;
  {
    Block empty;
    EXPECT_FALSE(static_cast<bool>(empty));
    empty.Reset();  // nothing to give back

    auto first = Block::Allocate(memory, 100);
    ASSERT_TRUE(first.ok());
    const Address address = first->address();
    Block moved = std::move(*first);
    EXPECT_EQ(moved.address(), address);
    EXPECT_FALSE(static_cast<bool>(*first));
    EXPECT_EQ(first->bytes(), 0u);
    EXPECT_EQ(memory.live(), 1u);

    auto second = Block::Allocate(memory, 200000);
    ASSERT_TRUE(second.ok());
    EXPECT_EQ(memory.live(), 2u);
    moved = std::move(*second);  // gives the first back
    EXPECT_EQ(memory.live(), 1u);
    EXPECT_EQ(moved.bytes(), 200000u);

    Block& same = moved;
    moved = std::move(same);
    EXPECT_EQ(moved.bytes(), 200000u);
    EXPECT_EQ(memory.live(), 1u);

    moved.Reset();
    EXPECT_EQ(memory.live(), 0u);
    moved.Reset();
    auto last = Block::Allocate(memory, 5);
    ASSERT_TRUE(last.ok());
    EXPECT_EQ(memory.live(), 1u);
  }
  EXPECT_EQ(memory.live(), 0u);
}

}  // namespace
}  // namespace kvart

#include "base/bandwidth.h"

#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstring>

#include "base/memory.h"

namespace kvart {
namespace {

constexpr uint64_t kPiece = uint64_t{256} << 10;  // a task, and a whole number of lines

// The sum of n words, n % 32 == 0, in enough chains that memory and not the adder is what it waits for.
uint64_t Sum(const uint64_t* p, uint64_t n) {
  constexpr uint64_t kAhead = 512;  // words: 4 KB, far enough to cover a miss
  uint64_t sums[32] = {};
  for (uint64_t i = 0; i < n; i += 32) {
    for (uint64_t line = 0; line < 32; line += 8) __builtin_prefetch(p + i + kAhead + line);
    for (uint64_t j = 0; j < 32; ++j) sums[j] += p[i + j];
  }
  uint64_t sum = 0;
  for (const uint64_t s : sums) sum += s;
  return sum;
}

uint64_t DefaultBytes() {
  const uint64_t memory = static_cast<uint64_t>(sysconf(_SC_PHYS_PAGES)) * static_cast<uint64_t>(sysconf(_SC_PAGESIZE));
  const uint64_t cache = ReadCpuTopology("").cache_bytes;
  return std::min(std::max(uint64_t{512} << 20, 4 * cache), memory / 4);
}

}  // namespace

Result<ReadBandwidth> MeasureReadBandwidth(ThreadPool& pool, uint64_t bytes, int passes) {
  if (bytes == 0) bytes = DefaultBytes();
  const uint64_t pieces = std::max<uint64_t>(1, bytes / kPiece);
  bytes = pieces * kPiece;
  KVART_ASSIGN_OR_RETURN(const Block block, Block::Allocate(HostMemory(), bytes));
  const AffinityScope scope(pool.caller_cpus());
  uint8_t* data = HostPointer<uint8_t>(block.address());
  const int64_t n = static_cast<int64_t>(pieces);
  pool.Run(n, [&](int64_t task, int) { std::memset(data + static_cast<uint64_t>(task) * kPiece, 1, kPiece); });

  std::atomic<uint64_t> total{0};  // used, so that no compiler leaves the reading out
  ReadBandwidth best;
  best.bytes = bytes;
  for (int pass = 0; pass < passes; ++pass) {
    const auto start = std::chrono::steady_clock::now();
    pool.Run(n, [&](int64_t task, int) {
      const uint8_t* piece = data + static_cast<uint64_t>(task) * kPiece;
      total.fetch_add(Sum(reinterpret_cast<const uint64_t*>(piece), kPiece / sizeof(uint64_t)),
                      std::memory_order_relaxed);
    });
    const double seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
    best.gb_s = std::max(best.gb_s, static_cast<double>(bytes) / seconds / 1e9);
  }
  const uint64_t want = uint64_t{0x0101010101010101} * (bytes / sizeof(uint64_t)) * static_cast<uint64_t>(passes);
  if (total.load() != want) return Status(StatusCode::kInternal, "reading memory gave another sum than was written");
  return best;
}

}  // namespace kvart

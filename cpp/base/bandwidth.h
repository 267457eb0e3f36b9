// How fast this machine reads memory with the threads of a pool: the roof that decode is measured against.
// May depend on: memory, thread_pool.
#pragma once

#include <cstdint>

#include "base/status.h"
#include "base/thread_pool.h"

namespace kvart {

struct ReadBandwidth {
  double gb_s = 0;     // 10^9 bytes a second: the best of the passes
  uint64_t bytes = 0;  // read by each of them
};

// Sums up a block of memory in order, shared out among the threads, `passes` times. bytes: 0 takes what no cache can
// hold, four times the largest one and at least 512 MB (a quarter of the memory at most). OutOfMemory when there is not
// as much.
Result<ReadBandwidth> MeasureReadBandwidth(ThreadPool& pool, uint64_t bytes, int passes);

}  // namespace kvart

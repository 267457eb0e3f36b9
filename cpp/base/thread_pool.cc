#include "base/thread_pool.h"

#include <unistd.h>

#include <chrono>
#include <system_error>

#if defined(__x86_64__) || defined(__i386__)
#define KVART_PAUSE() __builtin_ia32_pause()
#elif defined(__aarch64__)
#define KVART_PAUSE() asm volatile("yield")
#else
#define KVART_PAUSE() (void)0
#endif

namespace kvart {
namespace {

// Waking a parked worker costs 20 µs and sometimes a millisecond, so a worker spins through the gaps inside a token and
// a little beyond; longer, and it would take the core from the one who makes the next token possible.
constexpr auto kSpin = std::chrono::microseconds(1500);
constexpr int kSpinsPerLook = 64;

// Spins until ready() or until kSpin has passed; says whether it was ready.
template <class Ready>
bool SpinUntil(const Ready& ready) {
  if (ready()) return true;
  const auto end = std::chrono::steady_clock::now() + kSpin;
  do {
    for (int i = 0; i < kSpinsPerLook; ++i) {
      if (ready()) return true;
      KVART_PAUSE();
    }
  } while (std::chrono::steady_clock::now() < end);
  return ready();
}

constexpr uint64_t Index(uint64_t ticket) {
  return ticket & 0xffffffffu;
}
constexpr uint64_t Count(uint64_t ticket) {
  return ticket >> 32;
}

}  // namespace

ThreadPool::ThreadPool(int n_threads) : process_(getpid()) {
  for (int i = 1; i < n_threads; ++i) {
    try {
      workers_.emplace_back([this, i] { Work(i); });
    } catch (const std::system_error&) {
      break;  // run with the threads that there are
    }
  }
}

ThreadPool::~ThreadPool() {
  if (getpid() != process_) {  // in a child of fork() there are no workers to wait for
    for (std::thread& worker : workers_) worker.detach();
    return;
  }
  stop_.store(true);
  epoch_.fetch_add(1);
  epoch_.notify_all();
  for (std::thread& worker : workers_) worker.join();
}

void ThreadPool::RunTasks(int64_t n_tasks, Function function, const void* context) {
  if (workers_.empty() || n_tasks == 1) {
    for (int64_t task = 0; task < n_tasks; ++task) function(context, task, 0);
    return;
  }
  constexpr int64_t kMaxBatch = int64_t{1} << 30;  // the ticket's halves must not overflow
  for (int64_t first = 0; first < n_tasks; first += kMaxBatch) {
    RunBatch(first, n_tasks - first < kMaxBatch ? n_tasks - first : kMaxBatch, function, context);
  }
}

void ThreadPool::RunBatch(int64_t first, int64_t n_tasks, Function function, const void* context) {
  function_ = function;
  context_ = context;
  first_ = first;
  done_.store(0, std::memory_order_relaxed);
  ticket_.store(static_cast<uint64_t>(n_tasks) << 32, std::memory_order_release);
  epoch_.fetch_add(1, std::memory_order_seq_cst);
  epoch_.notify_all();  // cheap when nobody is parked

  while (ClaimAndRun(0)) {
  }
  const uint32_t all = static_cast<uint32_t>(n_tasks);
  const auto finished = [&] { return done_.load(std::memory_order_acquire) == all; };
  while (!SpinUntil(finished)) std::this_thread::yield();  // a worker that lost its core in the middle of a task
}

bool ThreadPool::ClaimAndRun(int thread) {
  if (uint64_t seen = ticket_.load(std::memory_order_acquire); Index(seen) >= Count(seen)) return false;
  const uint64_t ticket = ticket_.fetch_add(1, std::memory_order_acq_rel);
  if (Index(ticket) >= Count(ticket)) return false;
  function_(context_, first_ + static_cast<int64_t>(Index(ticket)), thread);
  done_.fetch_add(1, std::memory_order_acq_rel);
  return true;
}

void ThreadPool::Work(int thread) {
  uint32_t seen = 0;
  while (true) {
    const auto news = [&] { return epoch_.load(std::memory_order_acquire) != seen; };
    if (!SpinUntil(news)) epoch_.wait(seen, std::memory_order_acquire);
    seen = epoch_.load(std::memory_order_acquire);
    if (stop_.load()) return;  // after the epoch: it rises behind stop_, so the last rise cannot be taken for a batch
    while (ClaimAndRun(thread)) {
    }
  }
}

}  // namespace kvart

#include "base/thread_pool.h"

#include <unistd.h>

#include <algorithm>
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

// Waking a parked worker costs 20 µs and sometimes a millisecond, so a waiting thread stays awake through a whole
// token: it spins through the gaps between kernels, and then offers its core to whoever wants it each time it looks, so
// that other programs, or another pool, lose nothing by it. When no batch has come for long it parks.
constexpr auto kSpin = std::chrono::microseconds(50);
constexpr auto kStayAwake = std::chrono::microseconds(1500);
constexpr int kSpinsPerLook = 64;

// Waits until ready() or until kStayAwake has passed; says whether it was ready.
template <class Ready>
bool WaitAwake(const Ready& ready) {
  if (ready()) return true;
  const auto begin = std::chrono::steady_clock::now();
  auto now = begin;
  for (; now < begin + kSpin; now = std::chrono::steady_clock::now()) {
    for (int i = 0; i < kSpinsPerLook; ++i) {
      if (ready()) return true;
      KVART_PAUSE();
    }
  }
  for (; now < begin + kStayAwake; now = std::chrono::steady_clock::now()) {
    if (ready()) return true;
    std::this_thread::yield();
  }
  return ready();
}

constexpr uint64_t Next(uint64_t ticket) {
  return ticket & 0xffffffffu;
}
constexpr uint64_t End(uint64_t ticket) {
  return ticket >> 32;
}

}  // namespace

ThreadPool::ThreadPool(int n_threads) : ThreadPool(ThreadPlan::Anywhere(std::max(1, n_threads))) {}

ThreadPool::ThreadPool(const ThreadPlan& plan)
    : plan_(plan), shares_(static_cast<size_t>(plan.n_threads)), process_(getpid()) {
  running_.store(plan.n_running);
  for (int i = 1; i < plan.n_threads; ++i) {
    try {
      workers_.emplace_back([this, i] { Work(i); });
    } catch (const std::system_error&) {
      break;  // run with the threads that there are
    }
  }
  running_.store(std::min(plan.n_running, n_threads()));
}

ThreadPool::~ThreadPool() {
  if (getpid() != process_) {  // in a child of fork() there are no workers to wait for
    for (std::thread& worker : workers_) worker.detach();
    return;
  }
  stop_.store(true);
  epoch_.fetch_add(1);
  epoch_.notify_all();
  SetRunning(n_threads());
  for (std::thread& worker : workers_) worker.join();
}

std::vector<int> ThreadPool::CpusOf(int thread) const {
  if (!plan_.one_each) return plan_.cpus;
  return {plan_.cpus[static_cast<size_t>(thread) % plan_.cpus.size()]};
}

void ThreadPool::SetRunning(int n) {
  if (running_.exchange(n) != n) running_.notify_all();
}

void ThreadPool::FollowMask() {
  const int worker = worker_id_.load(std::memory_order_relaxed);
  if (worker == 0 || plan_.one_each) return;
  // A worker's mask and not the caller's, which may be pinned by whoever owns that thread.
  const int allowed = static_cast<int>(AllowedCpus(worker).size());
  if (allowed > 0) SetRunning(std::min({allowed, plan_.n_running, n_threads()}));
}

void ThreadPool::RunTasks(int64_t n_tasks, Function function, const void* context) {
  if (n_running() == 1 || n_tasks == 1) {
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
  n_tasks_ = static_cast<uint32_t>(n_tasks);
  const uint64_t n_shares = static_cast<uint64_t>(n_running()), all_tasks = n_tasks_;
  for (uint64_t i = 0; i < n_shares; ++i) {
    const uint64_t begin = all_tasks * i / n_shares, end = all_tasks * (i + 1) / n_shares;
    shares_[i].ticket.store(end << 32 | begin, std::memory_order_release);
  }
  epoch_.fetch_add(1, std::memory_order_seq_cst);
  if (parked_.load() > 0) epoch_.notify_all();

  while (ClaimAndRun(0)) {
  }
  const auto finished = [&] { return done_.load(std::memory_order_acquire) == n_tasks_; };
  if (WaitAwake(finished)) return;
  // A worker has lost its core in the middle of a task.
  caller_parked_.store(true);
  for (uint32_t done; (done = done_.load()) != n_tasks_;) done_.wait(done);
  caller_parked_.store(false);
}

bool ThreadPool::ClaimAndRun(int thread) {
  for (size_t i = 0; i < shares_.size(); ++i) {
    if (ClaimAndRun(shares_[(static_cast<size_t>(thread) + i) % shares_.size()].ticket, thread)) return true;
  }
  return false;
}

bool ThreadPool::ClaimAndRun(std::atomic<uint64_t>& share, int thread) {
  if (uint64_t seen = share.load(std::memory_order_acquire); Next(seen) >= End(seen)) return false;
  const uint64_t ticket = share.fetch_add(1, std::memory_order_acq_rel);
  if (Next(ticket) >= End(ticket)) return false;
  const uint32_t n_tasks = n_tasks_;  // behind the last task the next batch may have begun
  function_(context_, first_ + static_cast<int64_t>(Next(ticket)), thread);
  if (done_.fetch_add(1) + 1 == n_tasks && caller_parked_.load()) done_.notify_one();
  return true;
}

void ThreadPool::Work(int thread) {
  if (const std::vector<int> cpus = CpusOf(thread); !cpus.empty()) KeepThisThreadOn(cpus);
  if (thread == 1) worker_id_.store(ThisThreadId());
  uint32_t seen = 0;
  while (true) {
    for (int running; (running = running_.load()) <= thread;) running_.wait(running);
    const auto news = [&] { return epoch_.load(std::memory_order_acquire) != seen; };
    if (!WaitAwake(news)) {
      parked_.fetch_add(1);
      epoch_.wait(seen);
      parked_.fetch_sub(1);
    }
    seen = epoch_.load(std::memory_order_acquire);
    if (stop_.load()) return;  // after the epoch: it rises behind stop_, so the last rise cannot be taken for a batch
    while (ClaimAndRun(thread)) {
    }
  }
}

}  // namespace kvart

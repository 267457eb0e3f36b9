// A fork-join thread pool for kernels: workers spin through the gaps inside a token and park between requests.
// May depend on: cpu. Used by backend/cpu.
#pragma once

#include <atomic>
#include <cstdint>
#include <thread>
#include <type_traits>
#include <vector>

#include "base/cpu.h"

namespace kvart {

// One thread at a time may call Run; which thread runs which task is not fixed, so results must not depend on it.
// A worker that the system does not schedule delays nobody: tasks are claimed one by one, and Run waits for tasks, not
// for workers. Threads beyond what the machine can run at once sleep: running, they would only take turns, and hold up
// all others with a task in hand.
class ThreadPool {
 public:
  // The caller of Run counts as one thread, and should be kept on caller_cpus(); fewer when the system refuses threads.
  explicit ThreadPool(const ThreadPlan& plan);
  explicit ThreadPool(int n_threads);  // all of them run, wherever the system puts them
  ~ThreadPool();
  ThreadPool(const ThreadPool&) = delete;
  ThreadPool& operator=(const ThreadPool&) = delete;

  int n_threads() const { return static_cast<int>(workers_.size()) + 1; }
  int n_running() const { return running_.load(std::memory_order_relaxed); }
  const ThreadPlan& plan() const { return plan_; }
  std::vector<int> caller_cpus() const { return CpusOf(0); }

  // Lets fewer threads run when the system has taken CPUs from this process, as Android does from what is in the
  // background, and more when they are back. A system call: once a token, not once a batch. Not during Run.
  void FollowMask();

  // Calls f(task, thread) for task = 0 … n_tasks - 1 and returns when all are done; thread < n_threads() is the same
  // for all tasks that one thread runs. f must not throw and must not call Run.
  template <class F>
  void Run(int64_t n_tasks, const F& f) {
    RunTasks(
        n_tasks, [](const void* context, int64_t task, int thread) { (*static_cast<const F*>(context))(task, thread); },
        &f);
  }

 private:
  using Function = void (*)(const void* context, int64_t task, int thread);
  void RunTasks(int64_t n_tasks, Function function, const void* context);
  void RunBatch(int64_t first, int64_t n_tasks, Function function, const void* context);
  void Work(int thread);
  bool ClaimAndRun(int thread);  // false when there was no task left
  bool ClaimAndRun(std::atomic<uint64_t>& share, int thread);
  void SetRunning(int n);
  std::vector<int> CpusOf(int thread) const;

  const ThreadPlan plan_;

  // What to run. Written only while no task is left, so whoever has claimed a task reads it safely.
  Function function_ = nullptr;
  const void* context_ = nullptr;
  int64_t first_ = 0;
  uint32_t n_tasks_ = 0;

  // A share of the tasks for each thread, so that it reads memory in order; who has none left takes from the others.
  // end << 32 | next task. Claiming is one fetch_add, whose result says by itself whether there was a task to claim.
  struct alignas(64) Share {
    std::atomic<uint64_t> ticket{0};
  };
  std::vector<Share> shares_;  // (threads wanted)
  alignas(64) std::atomic<uint32_t> done_{0};
  alignas(64) std::atomic<uint32_t> epoch_{0};  // rises with every batch: what parked workers wait for
  alignas(64) std::atomic<int> running_{1};     // threads from this number on sleep
  // Who waits, by our own count: the library's is kept by a few bits of the address, so one that waits anywhere, in
  // another pool even, would make a system call of every notify. One order over all of these and what they guard
  // (seq_cst): either who goes to wait sees the news, or who brings it sees the count.
  std::atomic<int> parked_{0};  // workers
  std::atomic<bool> caller_parked_{false};
  std::atomic<bool> stop_{false};
  std::atomic<int> worker_id_{0};  // of worker 1, to the system; 0 until it has begun
  std::vector<std::thread> workers_;
  const int64_t process_;
};

}  // namespace kvart

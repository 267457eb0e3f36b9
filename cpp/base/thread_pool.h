// A fork-join thread pool for kernels: workers spin through the gaps inside a token and park between requests.
// May depend on: nothing. Used by backend/cpu.
#pragma once

#include <atomic>
#include <cstdint>
#include <thread>
#include <type_traits>
#include <vector>

namespace kvart {

// One thread at a time may call Run; which thread runs which task is not fixed, so results must not depend on it.
// A worker that the system does not schedule delays nobody: tasks are claimed one by one, and Run waits for tasks, not
// for workers.
class ThreadPool {
 public:
  explicit ThreadPool(int n_threads);  // the caller of Run counts as one; fewer when the system refuses threads
  ~ThreadPool();
  ThreadPool(const ThreadPool&) = delete;
  ThreadPool& operator=(const ThreadPool&) = delete;

  int n_threads() const { return static_cast<int>(workers_.size()) + 1; }

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

  // What to run. Written only while no task is left, so whoever has claimed a task reads it safely.
  Function function_ = nullptr;
  const void* context_ = nullptr;
  int64_t first_ = 0;

  // n_tasks << 32 | next task. Claiming is one fetch_add, whose result says by itself whether there was a task to
  // claim.
  alignas(64) std::atomic<uint64_t> ticket_{0};
  alignas(64) std::atomic<uint32_t> done_{0};
  alignas(64) std::atomic<uint32_t> epoch_{0};  // rises with every batch: what parked workers wait for
  std::atomic<bool> stop_{false};
  std::vector<std::thread> workers_;
  const int64_t process_;
};

}  // namespace kvart

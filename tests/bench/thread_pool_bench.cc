// What the pool costs: the barrier of a batch, waking parked workers, and more threads than cores.
#include <benchmark/benchmark.h>

#include <chrono>
#include <thread>

#include "base/bandwidth.h"
#include "base/thread_pool.h"

namespace kvart {
namespace {

using std::chrono::microseconds;

// Work of about so many nanoseconds that touches no memory and leaves the clock alone.
void Work(int64_t ns) {
  static const double steps_per_ns = [] {
    constexpr int64_t kSteps = 2'000'000;
    const auto start = std::chrono::steady_clock::now();
    uint64_t x = 1;
    for (int64_t i = 0; i < kSteps; ++i) benchmark::DoNotOptimize(x = x * 6364136223846793005u + 1);
    return kSteps / std::chrono::duration<double, std::nano>(std::chrono::steady_clock::now() - start).count();
  }();
  uint64_t x = 1;
  for (int64_t i = static_cast<int64_t>(static_cast<double>(ns) * steps_per_ns); i > 0; --i) {
    benchmark::DoNotOptimize(x = x * 6364136223846793005u + 1);
  }
}

// A batch of one empty task a thread: claiming, seeing the batch, seeing its end. Each comes right behind the one
// before.
void BM_Barrier(benchmark::State& state) {
  ThreadPool pool(static_cast<int>(state.range(0)));
  for (auto _ : state) pool.Run(pool.n_threads(), [](int64_t, int) {});
}
BENCHMARK(BM_Barrier)->ArgName("threads")->DenseRange(1, std::max(2, UsableCores()))->UseRealTime();

// The same behind 10 µs of work of the caller alone, as norms and merges are inside a token; its time is taken off.
void BM_BarrierBehindAGap(benchmark::State& state) {
  ThreadPool pool(static_cast<int>(state.range(0)));
  for (auto _ : state) {
    Work(10'000);
    const auto start = std::chrono::steady_clock::now();
    pool.Run(pool.n_threads(), [](int64_t, int) {});
    state.SetIterationTime(std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count());
  }
}
BENCHMARK(BM_BarrierBehindAGap)
    ->ArgName("threads")
    ->DenseRange(1, std::max(2, UsableCores()))
    ->UseManualTime()
    ->Iterations(20000);

// The first batch of a request: the workers have parked.
void BM_WakeParked(benchmark::State& state) {
  ThreadPool pool(static_cast<int>(state.range(0)));
  for (auto _ : state) {
    std::this_thread::sleep_for(microseconds(4000));
    const auto start = std::chrono::steady_clock::now();
    pool.Run(pool.n_threads(), [](int64_t, int) { Work(20'000); });
    state.SetIterationTime(std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count());
  }
}
BENCHMARK(BM_WakeParked)->ArgName("threads")->Arg(std::max(2, UsableCores()))->UseManualTime()->Iterations(100);

// A decode step in small: 120 batches of 16 tasks of 5 µs with 2 µs between them. `at_once` of the threads run, as
// PlanThreads has it; where that is more than there are cores, they take turns.
void BM_Step(benchmark::State& state) {
  ThreadPool pool(ThreadPlan{static_cast<int>(state.range(0)), static_cast<int>(state.range(1)), {}, false});
  for (auto _ : state) {
    for (int batch = 0; batch < 120; ++batch) {
      pool.Run(16, [](int64_t, int) { Work(5'000); });
      Work(2'000);
    }
  }
}
const int kCores = UsableCores();
BENCHMARK(BM_Step)
    ->ArgNames({"threads", "at_once"})
    ->Args({1, 1})
    ->Args({kCores, kCores})
    ->Args({4 * kCores, kCores})
    ->Args({4 * kCores, 4 * kCores})
    ->UseRealTime()
    ->Unit(benchmark::kMillisecond);

// Memory read by all threads: the roof of decode.
void BM_ReadBandwidth(benchmark::State& state) {
  ThreadPool pool(static_cast<int>(state.range(0)));
  double best = 0;
  for (auto _ : state) {
    const Result<ReadBandwidth> read = MeasureReadBandwidth(pool, 0, 3);
    if (!read.ok()) return state.SkipWithError(read.status().message().c_str());
    best = std::max(best, read->gb_s);
  }
  state.counters["GB/s"] = best;
}
BENCHMARK(BM_ReadBandwidth)->ArgName("threads")->DenseRange(1, kCores)->UseRealTime()->Iterations(2);

}  // namespace
}  // namespace kvart

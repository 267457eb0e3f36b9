// The thread pool: every task runs once and is seen by the caller, whatever the numbers of tasks, threads and cores.
// Build it under ThreadSanitizer too: the plain writes below are then checked for races.
#include "base/thread_pool.h"

#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <memory>
#include <numeric>
#include <thread>
#include <vector>

namespace kvart {
namespace {

class ThreadPoolTest : public ::testing::TestWithParam<int> {};
INSTANTIATE_TEST_SUITE_P(Threads, ThreadPoolTest, ::testing::Values(1, 2, 3, 8));

TEST_P(ThreadPoolTest, EveryTaskOnce) {
  ThreadPool pool(GetParam());
  EXPECT_GE(pool.n_threads(), 1);
  EXPECT_LE(pool.n_threads(), GetParam());
  for (const int64_t n_tasks : {0, 1, 2, 3, 7, 8, 9, 100, 5000}) {
    std::vector<int> runs(static_cast<size_t>(n_tasks));  // plain ints: a task that ran twice would race
    std::atomic<int> wrong_thread{0};
    pool.Run(n_tasks, [&](int64_t task, int thread) {
      ++runs[static_cast<size_t>(task)];
      if (thread < 0 || thread >= pool.n_threads()) ++wrong_thread;
    });
    for (const int count : runs) ASSERT_EQ(count, 1) << n_tasks << " tasks";
    EXPECT_EQ(wrong_thread, 0);
  }
}

// A decoder's token is a few hundred small batches, each of which reads what the one before wrote.
TEST_P(ThreadPoolTest, ManyTinyBatchesThatBuildOnEachOther) {
  ThreadPool pool(GetParam());
  constexpr size_t kWidth = 5;
  std::vector<int64_t> values(kWidth, 1), next(kWidth);
  for (int batch = 0; batch < 20000; ++batch) {
    pool.Run(kWidth, [&](int64_t task, int) {
      const size_t i = static_cast<size_t>(task);
      next[i] = (values[i] + 3 * values[(i + 1) % kWidth]) % 1000003;
    });
    values.swap(next);
  }
  std::vector<int64_t> want(kWidth, 1), want_next(kWidth);
  for (int batch = 0; batch < 20000; ++batch) {
    for (size_t i = 0; i < kWidth; ++i) want_next[i] = (want[i] + 3 * want[(i + 1) % kWidth]) % 1000003;
    want.swap(want_next);
  }
  EXPECT_EQ(values, want);
}

// Each batch has a function and a context of its own: a worker that is late must not run the one before.
TEST_P(ThreadPoolTest, BatchesOfDifferentKinds) {
  ThreadPool pool(GetParam());
  for (int batch = 0; batch < 3000; ++batch) {
    const auto marks = std::make_unique<std::vector<int>>(static_cast<size_t>(batch % 7), -1);
    if (batch % 2 == 0) {
      pool.Run(batch % 7, [&](int64_t task, int) { (*marks)[static_cast<size_t>(task)] = batch; });
    } else {
      pool.Run(batch % 7,
               [marks = marks.get(), batch](int64_t task, int) { (*marks)[static_cast<size_t>(task)] = batch; });
    }
    for (const int mark : *marks) ASSERT_EQ(mark, batch);
  }
}

// Scratch memory per thread needs no lock: one thread index is never in two tasks at once.
TEST_P(ThreadPoolTest, ThreadIndexIsExclusive) {
  ThreadPool pool(GetParam());
  std::vector<int64_t> sums(static_cast<size_t>(pool.n_threads()),
                            0);  // plain: written by the thread that has the index
  std::vector<std::atomic<int>> busy(sums.size());
  std::atomic<int> clashes{0};
  for (int batch = 0; batch < 200; ++batch) {
    pool.Run(50, [&](int64_t task, int thread) {
      const size_t i = static_cast<size_t>(thread);
      if (busy[i].fetch_add(1) != 0) ++clashes;
      sums[i] += task;
      busy[i].fetch_sub(1);
    });
  }
  EXPECT_EQ(clashes, 0);
  EXPECT_EQ(std::accumulate(sums.begin(), sums.end(), int64_t{0}), int64_t{200} * 49 * 50 / 2);
}

TEST_P(ThreadPoolTest, WakesAfterAPause) {  // workers park when nothing comes for a while
  ThreadPool pool(GetParam());
  for (int round = 0; round < 5; ++round) {
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
    std::vector<int> runs(64);
    pool.Run(64, [&](int64_t task, int) { ++runs[static_cast<size_t>(task)]; });
    for (const int count : runs) ASSERT_EQ(count, 1);
  }
}

TEST_P(ThreadPoolTest, SlowTasksAreWaitedFor) {
  ThreadPool pool(GetParam());
  std::vector<int> done(9);
  pool.Run(9, [&](int64_t task, int) {
    std::this_thread::sleep_for(std::chrono::milliseconds(task % 3 * 4));
    done[static_cast<size_t>(task)] = 1;
  });
  EXPECT_EQ(std::accumulate(done.begin(), done.end(), 0), 9);
}

// Threads beyond what the machine can run sleep: their numbers never appear, and they end with the pool all the same.
TEST(ThreadPoolLifeTest, SleepersTakeNoPart) {
  for (int i = 0; i < 100; ++i) {
    ThreadPool pool(ThreadPlan{8, 2, {}, false});
    EXPECT_EQ(pool.n_threads(), 8);
    EXPECT_EQ(pool.n_running(), 2);
    if (i % 3 == 0) continue;  // destroyed unused
    std::vector<int> threads(200, -1);
    pool.Run(200, [&](int64_t task, int thread) { threads[static_cast<size_t>(task)] = thread; });
    for (const int thread : threads) ASSERT_TRUE(thread == 0 || thread == 1) << thread;
  }
}

TEST(ThreadPoolLifeTest, OneRunningThreadIsTheCaller) {
  ThreadPool pool(ThreadPlan{4, 1, {}, false});
  const std::thread::id caller = std::this_thread::get_id();
  int others = 0;
  for (int batch = 0; batch < 100; ++batch) {
    pool.Run(10, [&](int64_t, int) { others += std::this_thread::get_id() != caller; });
  }
  EXPECT_EQ(others, 0);
}

// The caller sleeps when a worker takes its time, and is woken by the last task.
TEST(ThreadPoolLifeTest, CallerParksAndIsWoken) {
  ThreadPool pool(2);
  for (int round = 0; round < 5; ++round) {
    std::vector<int> done(2);
    pool.Run(2, [&](int64_t task, int thread) {
      std::this_thread::sleep_for(std::chrono::milliseconds(thread == 0 ? 1 : 12));
      done[static_cast<size_t>(task)] = 1;
    });
    EXPECT_EQ(done, (std::vector<int>{1, 1}));
  }
}

// Many times: a worker that takes the end for one more batch would sleep for ever.
TEST(ThreadPoolLifeTest, ComesAndGoes) {
  for (int i = 0; i < 400; ++i) {
    ThreadPool pool(1 + i % 8);
    if (i % 3 == 0) continue;  // destroyed unused
    std::atomic<int> count{0};
    pool.Run(i, [&](int64_t, int) { ++count; });
    EXPECT_EQ(count, i);
  }
}

TEST(ThreadPoolLifeTest, OddThreadCounts) {
  for (const int n : {0, -1, 1}) {
    ThreadPool pool(n);
    EXPECT_EQ(pool.n_threads(), 1);
    int count = 0;
    pool.Run(3, [&](int64_t, int thread) { count += thread + 1; });
    EXPECT_EQ(count, 3);
  }
}

TEST(ThreadPoolLifeTest, UsersOnDifferentThreadsInTurn) {
  ThreadPool pool(4);
  std::vector<int> counts(100);
  for (int turn = 0; turn < 10; ++turn) {
    std::thread user([&] { pool.Run(100, [&](int64_t task, int) { ++counts[static_cast<size_t>(task)]; }); });
    user.join();
  }
  for (const int count : counts) EXPECT_EQ(count, 10);
}

TEST(ThreadPoolLifeTest, PoolsSideBySide) {
  std::vector<std::thread> users;
  std::vector<int64_t> sums(3);
  for (size_t u = 0; u < sums.size(); ++u) {
    users.emplace_back([&sums, u] {
      ThreadPool pool(3);
      std::vector<int64_t> values(40);
      for (int batch = 0; batch < 300; ++batch) {
        pool.Run(40, [&](int64_t task, int) { values[static_cast<size_t>(task)] += task; });
      }
      sums[u] = std::accumulate(values.begin(), values.end(), int64_t{0});
    });
  }
  for (std::thread& user : users) user.join();
  for (const int64_t sum : sums) EXPECT_EQ(sum, int64_t{300} * 39 * 40 / 2);
}

}  // namespace
}  // namespace kvart

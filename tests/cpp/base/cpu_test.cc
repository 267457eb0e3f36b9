// Which cores the threads take, on machines that are made of files: a phone, a board, a laptop, a container, a server.
#include "base/cpu.h"

#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <numeric>
#include <string>
#include <thread>
#include <vector>

#include "base/bandwidth.h"
#include "base/thread_pool.h"

namespace kvart {
namespace {

using Cpus = std::vector<int>;

Cpus Range(int first, int last) {
  Cpus cpus(static_cast<size_t>(last - first + 1));
  std::iota(cpus.begin(), cpus.end(), first);
  return cpus;
}

// A machine in a folder of its own, as Linux would describe it.
class CpuTreeTest : public ::testing::Test {
 protected:
  void SetUp() override {
    std::string name = ::testing::TempDir() + "kvart_cpu_XXXXXX";
    ASSERT_NE(mkdtemp(name.data()), nullptr);
    root_ = name;
  }
  void TearDown() override { std::filesystem::remove_all(root_); }

  void Put(const std::string& path, const std::string& text) {
    const std::filesystem::path file = root_ + path;
    std::filesystem::create_directories(file.parent_path());
    std::ofstream(file) << text << "\n";
  }
  void PutCpu(int cpu, const std::string& file, const std::string& text) {
    Put("/sys/devices/system/cpu/cpu" + std::to_string(cpu) + "/" + file, text);
  }
  void Online(const std::string& list) { Put("/sys/devices/system/cpu/online", list); }

  CpuTopology Read() const { return ReadCpuTopology(root_); }
  // The plan for this tree, allowed all of its CPUs unless said otherwise.
  ThreadPlan Plan(int n_threads = 0, const Cpus& cpus = {}) const { return PlanFor(AllCpus(), n_threads, cpus); }
  ThreadPlan PlanFor(const Cpus& allowed, int n_threads = 0, const Cpus& cpus = {}) const {
    const Result<ThreadPlan> plan = PlanThreads(Read(), allowed, n_threads, cpus);
    EXPECT_TRUE(plan.ok()) << plan.status().message();
    return plan.ok() ? *plan : ThreadPlan{};
  }
  std::string Refusal(const Cpus& allowed, const Cpus& cpus) const {
    const Result<ThreadPlan> plan = PlanThreads(Read(), allowed, 0, cpus);
    EXPECT_FALSE(plan.ok());
    EXPECT_EQ(plan.status().code(), StatusCode::kInvalidArgument);
    return plan.status().message();
  }
  Cpus AllCpus() const {
    Cpus cpus;
    for (const LogicalCpu& cpu : Read().cpus) cpus.push_back(cpu.id);
    return cpus;
  }

  void MakePhone() {  // Snapdragon 8 Gen 3: two little, five middle in two clusters, one big
    Online("0-7");
    const int capacity[] = {379, 379, 868, 868, 868, 924, 924, 1024};
    for (int cpu = 0; cpu < 8; ++cpu) PutCpu(cpu, "cpu_capacity", std::to_string(capacity[cpu]));
  }
  void MakeLaptop() {  // four cores of two threads each, numbered as Intel does
    Online("0-7");
    for (int cpu = 0; cpu < 8; ++cpu) {
      const std::string pair = std::to_string(cpu % 4) + "," + std::to_string(cpu % 4 + 4);
      PutCpu(cpu, "topology/thread_siblings_list", pair);
      PutCpu(cpu, "cpufreq/cpuinfo_max_freq", cpu % 4 < 2 ? "4700000" : "4500000");  // two favoured cores
      PutCpu(cpu, "cache/index2/size", "2048K");
      PutCpu(cpu, "cache/index3/size", "12288K");
    }
  }
  void MakeServer() {  // two nodes of eight cores, two threads each; a node of memory alone
    Online("0-31");
    for (int cpu = 0; cpu < 32; ++cpu) {
      PutCpu(cpu, "topology/core_cpus_list", std::to_string(cpu % 16) + "," + std::to_string(cpu % 16 + 16));
    }
    Put("/sys/devices/system/node/online", "0-2");
    Put("/sys/devices/system/node/node0/cpulist", "0-7,16-23");
    Put("/sys/devices/system/node/node1/cpulist", "8-15,24-31");
    Put("/sys/devices/system/node/node2/cpulist", "");
  }

  std::string root_;
};

TEST_F(CpuTreeTest, OrinTakesWhatItsPowerModeLeavesOnline) {
  Online("0-11");
  for (int cpu = 0; cpu < 12; ++cpu) {
    PutCpu(cpu, "cpu_capacity", "1024");
    PutCpu(cpu, "topology/thread_siblings_list", std::to_string(cpu));
  }
  EXPECT_EQ(Plan().n_threads, 12);
  EXPECT_EQ(Plan().n_running, 12);
  EXPECT_TRUE(Plan().cpus.empty());  // all alike: the system places them as well as anyone
  Online("0-3,8-11");
  EXPECT_EQ(Plan().n_threads, 8);
}

TEST_F(CpuTreeTest, PhoneLeavesItsLittleCores) {
  MakePhone();
  ThreadPlan plan = Plan();
  EXPECT_EQ(plan.n_threads, 6);
  EXPECT_EQ(plan.n_running, 6);
  EXPECT_EQ(plan.cpus, (Cpus{7, 5, 6, 2, 3, 4}));  // fastest first, and kept there
  EXPECT_FALSE(plan.one_each);
  EXPECT_EQ(Plan(2).cpus, (Cpus{7, 5}));
  plan = Plan(8);  // little ones only when asked for
  EXPECT_EQ(plan.n_threads, 8);
  EXPECT_EQ(plan.cpus, (Cpus{7, 5, 6, 2, 3, 4, 0, 1}));
  EXPECT_EQ(PlanFor({0, 1}).n_threads, 2);  // in the background: the little ones are all there is
  EXPECT_EQ(PlanFor({0, 1, 2, 3}).n_threads, 2);
}

TEST_F(CpuTreeTest, FrequenciesTellWhereCapacitiesDoNot) {
  Online("0-7");
  const char* khz[] = {"1804800", "1804800", "1804800", "1804800", "2419200", "2419200", "2419200", "2841600"};
  for (int cpu = 0; cpu < 8; ++cpu) PutCpu(cpu, "cpufreq/cpuinfo_max_freq", khz[cpu]);
  EXPECT_EQ(Plan().cpus, (Cpus{7, 4, 5, 6}));
  std::filesystem::remove(root_ + "/sys/devices/system/cpu/cpu0/cpufreq/cpuinfo_max_freq");
  EXPECT_EQ(Plan().n_threads, 8);  // half a picture is none
}

TEST_F(CpuTreeTest, LaptopTakesAThreadAPhysicalCore) {
  MakeLaptop();
  EXPECT_EQ(Plan().n_threads, 4);
  EXPECT_TRUE(Plan().cpus.empty());
  EXPECT_EQ(PlanFor({2, 6}).n_threads, 1);  // one core, both its threads
  EXPECT_EQ(PlanFor({5, 6}).n_threads, 2);  // siblings of nothing that may be used
  EXPECT_EQ(Plan(8).n_running, 8);          // siblings when asked for
  EXPECT_EQ(Plan(20).n_threads, 20);        // more than there are: the rest sleeps
  EXPECT_EQ(Plan(20).n_running, 8);
  EXPECT_EQ(Read().cache_bytes, size_t{12} << 20);
}

TEST_F(CpuTreeTest, ServerStaysOnOneNode) {
  MakeServer();
  EXPECT_EQ(Plan().n_threads, 8);
  EXPECT_EQ(Plan().cpus, Range(0, 7));
  EXPECT_EQ(Plan(4).cpus, Range(0, 3));
  EXPECT_EQ(Plan(16).cpus, Range(0, 15));  // the other node, before any sibling
  Cpus most_of_node_1 = Range(6, 15);
  EXPECT_EQ(PlanFor(most_of_node_1).cpus, Range(8, 15));  // the node that has more of what is allowed
}

TEST_F(CpuTreeTest, QuotaIsRounded) {
  Online("0-7");
  Put("/proc/self/cgroup", "0::/");
  const auto threads = [&](const std::string& quota) {
    Put("/sys/fs/cgroup/cpu.max", quota);
    return Plan().n_threads;
  };
  EXPECT_EQ(threads("150000 100000"), 2);
  EXPECT_EQ(threads("120000 100000"), 1);
  EXPECT_EQ(threads("20000 100000"), 1);
  EXPECT_EQ(threads("400000 100000"), 4);
  EXPECT_EQ(threads("9900000 100000"), 8);
  EXPECT_EQ(threads("max 100000"), 8);
  EXPECT_EQ(threads("nonsense"), 8);
  EXPECT_EQ(threads("100000 0"), 8);
  threads("150000 100000");
  EXPECT_DOUBLE_EQ(Read().quota, 1.5);
  EXPECT_EQ(Plan(6).n_threads, 6);
  EXPECT_EQ(Plan(6).n_running, 2);
}

TEST_F(CpuTreeTest, QuotaOfACgroupAbove) {
  Online("0-15");
  Put("/proc/self/cgroup", "0::/user.slice/app.service");
  Put("/sys/fs/cgroup/user.slice/app.service/cpu.max", "max 100000");
  EXPECT_EQ(Plan().n_threads, 16);
  Put("/sys/fs/cgroup/user.slice/cpu.max", "300000 100000");
  EXPECT_EQ(Plan().n_threads, 3);
  Put("/sys/fs/cgroup/user.slice/app.service/cpu.max", "200000 100000");
  EXPECT_EQ(Plan().n_threads, 2);
}

TEST_F(CpuTreeTest, QuotaOfVersionOne) {
  Online("0-15");
  Put("/proc/self/cgroup", "5:memory:/docker/4711\n3:cpuacct,cpu:/docker/4711\n0::/");
  EXPECT_EQ(Plan().n_threads, 16);
  Put("/sys/fs/cgroup/cpu/cpu.cfs_quota_us", "-1");
  Put("/sys/fs/cgroup/cpu/cpu.cfs_period_us", "100000");
  EXPECT_EQ(Plan().n_threads, 16);
  Put("/sys/fs/cgroup/cpu/cpu.cfs_quota_us", "250000");  // the container's own cgroup, mounted as the root
  EXPECT_EQ(Plan().n_threads, 3);
  Put("/sys/fs/cgroup/cpu/docker/4711/cpu.cfs_quota_us", "150000");
  Put("/sys/fs/cgroup/cpu/docker/4711/cpu.cfs_period_us", "100000");
  EXPECT_EQ(Plan().n_threads, 2);
}

TEST_F(CpuTreeTest, NothingToRead) {
  EXPECT_TRUE(Read().cpus.empty());
  const int there = static_cast<int>(std::max(1u, std::thread::hardware_concurrency()));
  EXPECT_EQ(PlanFor({}).n_threads, there);
  EXPECT_EQ(PlanFor({}, there + 3).n_threads, there + 3);
  EXPECT_EQ(PlanFor({}, there + 3).n_running, there);
  EXPECT_EQ(PlanThreads(Read(), {}, 0, Cpus{0}).status().code(), StatusCode::kUnsupported);
}

TEST_F(CpuTreeTest, TheUsersCpus) {
  MakePhone();
  ThreadPlan plan = Plan(0, {0, 1, 7});
  EXPECT_EQ(plan.n_threads, 3);
  EXPECT_EQ(plan.cpus, (Cpus{0, 1, 7}));
  EXPECT_TRUE(plan.one_each);
  plan = Plan(2, {0, 1, 7});  // fewer threads than CPUs: anywhere among them
  EXPECT_EQ(plan.n_threads, 2);
  EXPECT_FALSE(plan.one_each);
  plan = Plan(5, {0, 1, 7});
  EXPECT_EQ(plan.n_threads, 5);
  EXPECT_EQ(plan.n_running, 3);
  EXPECT_TRUE(plan.one_each);
  EXPECT_EQ(Plan(0, {7, 7, 5}).cpus, (Cpus{7, 5}));
}

TEST_F(CpuTreeTest, RefusalsNameTheCpus) {
  MakePhone();
  EXPECT_EQ(Refusal(AllCpus(), {7, 8, 9, 11}), "cpus: found 8-9,11; online on this machine are 0-7");
  EXPECT_EQ(Refusal(AllCpus(), {-1}), "cpus: found -1; online on this machine are 0-7");
  EXPECT_EQ(Refusal({2, 3, 4, 6}, {2, 5, 7}), "cpus: found 5,7; the affinity mask allows this process 2-4,6");
}

TEST(CpuListTest, ParsesAndFormats) {
  EXPECT_EQ(ParseCpuList("0-3,6"), (Cpus{0, 1, 2, 3, 6}));
  EXPECT_EQ(ParseCpuList("5"), (Cpus{5}));
  EXPECT_TRUE(ParseCpuList("").empty());
  EXPECT_EQ(ParseCpuList("x,2,-3,4-"), (Cpus{2, 4}));
  EXPECT_TRUE(ParseCpuList("3-1").empty());
  EXPECT_EQ(ParseCpuList("0-2000000000").size(), 8192u);
  EXPECT_EQ(FormatCpuList({6, 3, 2, 1, 9, 10}), "1-3,6,9-10");
  EXPECT_EQ(FormatCpuList({}), "");
}

#if defined(__linux__)

TEST(AffinityTest, ScopeKeepsAndLetsGo) {
  const Cpus before = AllowedCpus();
  ASSERT_FALSE(before.empty());
  {
    const AffinityScope scope(Cpus{before.back()});
    EXPECT_EQ(AllowedCpus(), Cpus{before.back()});
    EXPECT_EQ(PlanThreads(0, {})->n_threads, 1);  // the mask that counts is the thread's own
    const AffinityScope nothing(Cpus{});
    EXPECT_EQ(AllowedCpus(), Cpus{before.back()});
  }
  EXPECT_EQ(AllowedCpus(), before);
  {
    const AffinityScope impossible(Cpus{8000});
    EXPECT_EQ(AllowedCpus(), before);
  }
  EXPECT_EQ(AllowedCpus(), before);
}

TEST(AffinityTest, PoolKeepsItsThreadsWhereThePlanSays) {
  const Cpus cpus = AllowedCpus();
  const Cpus wanted = {cpus.back(), cpus.front()};
  const int n = cpus.size() > 1 ? 2 : 1;
  ThreadPool pool(PlanThreads(n, std::span(wanted).first(static_cast<size_t>(n))).value());
  const AffinityScope scope(pool.caller_cpus());
  std::vector<Cpus> seen(static_cast<size_t>(n));
  for (int round = 0; round < 500 && seen.back().empty(); ++round) {  // until each thread has had a task
    pool.Run(8, [&](int64_t, int thread) {
      seen[static_cast<size_t>(thread)] = AllowedCpus();
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    });
  }
  for (size_t i = 0; i < seen.size(); ++i) EXPECT_EQ(seen[i], Cpus{wanted[i]}) << "thread " << i;
}

TEST(AffinityTest, PoolFollowsTheMask) {
  const Cpus before = AllowedCpus();
  if (before.size() < 2) GTEST_SKIP() << "one CPU";
  std::unique_ptr<ThreadPool> pool;
  {
    const AffinityScope one(Cpus{before.front()});  // workers begin with the mask of who makes them
    pool = std::make_unique<ThreadPool>(ThreadPlan::Anywhere(4));
    EXPECT_EQ(pool->n_running(), 4);
    for (int i = 0; i < 1000 && pool->n_running() == 4; ++i) {  // until worker 1 has begun
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
      pool->FollowMask();
    }
    EXPECT_EQ(pool->n_running(), 1);
  }
  pool->FollowMask();
  EXPECT_EQ(pool->n_running(), 1);  // its workers' mask, not its caller's
  EXPECT_EQ(pool->n_threads(), 4);
  std::vector<int> runs(100);
  pool->Run(100, [&](int64_t task, int) { ++runs[static_cast<size_t>(task)]; });
  EXPECT_EQ(std::accumulate(runs.begin(), runs.end(), 0), 100);
}

#endif

TEST(BandwidthTest, ReadsWhatIsThere) {
  ThreadPool pool(2);
  const Result<ReadBandwidth> read = MeasureReadBandwidth(pool, uint64_t{8} << 20, 3);
  ASSERT_TRUE(read.ok()) << read.status().message();
  EXPECT_EQ(read->bytes, uint64_t{8} << 20);
  EXPECT_GT(read->gb_s, 0.1);
  EXPECT_LT(read->gb_s, 1e5);
}

}  // namespace
}  // namespace kvart

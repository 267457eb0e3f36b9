// What processor this is: its instruction sets, its cores, and which of them the threads of a pool should take.
// May depend on: status. Used by kernels/dispatch.cc, base/thread_pool.h and backend/cpu.
#pragma once

#include <cstddef>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"

namespace kvart {

struct CpuFeatures {
  bool avx2 = false;    // with FMA and F16C
  bool avx512 = false;  // F, BW, DQ, VL and VNNI
  bool neon = false;    // Advanced SIMD with dot products and half precision
  bool i8mm = false;    // neon, with products of 2 x 8 matrices of int8
};

const CpuFeatures& DetectCpu();

// A logical CPU, as the system describes it.
struct LogicalCpu {
  int id = 0;
  int core = 0;      // its physical core: the lowest id among the CPUs that share it (SMT)
  int node = 0;      // NUMA node
  double speed = 1;  // as part of the fastest CPU's
};

struct CpuTopology {
  std::vector<LogicalCpu> cpus;  // online, by id; empty where the system does not tell
  double slow_below = 0;         // a core of less speed than this is left to others: see ReadCpuTopology
  double quota = 0;              // CPUs' worth of time that the cgroups allow; 0: no limit
  size_t cache_bytes = 0;        // of the largest cache; 0: unknown
};

// Reads Linux's sysfs and cgroup files below root: "" is this machine, tests bring trees of their own. What is missing
// or makes no sense is taken for not being there.
CpuTopology ReadCpuTopology(const std::string& root);

// Which CPUs run how many threads.
struct ThreadPlan {
  int n_threads = 1;      // as asked, or one for each core worth having
  int n_running = 1;      // of these, what the machine can run at once: the others sleep
  std::vector<int> cpus;  // the threads are kept to these; empty: they are wherever the system puts them
  bool one_each = false;  // thread i is on cpus[i] alone

  static ThreadPlan Anywhere(int n) { return {n, n, {}, false}; }  // n threads, all running
};

// n_threads: 0 chooses: a thread for each physical core (SMT siblings share the units that the kernels fill), of the
// big cores only (ReadCpuTopology), of one NUMA node, and no more than a cgroup's quota, rounded. More are taken in the
// order: other nodes, slow cores, siblings. cpus: where the user wants the threads; one for each unless n_threads says
// otherwise. allowed: the affinity mask. InvalidArgument names CPUs that are not there or not allowed.
Result<ThreadPlan> PlanThreads(const CpuTopology& topology, const std::vector<int>& allowed, int n_threads,
                               std::span<const int> cpus);
Result<ThreadPlan> PlanThreads(int n_threads, std::span<const int> cpus);  // of this machine, for the calling thread

// Threads that a plan for this machine has by default. At least 1.
int UsableCores();

// "0-3,6" as numbers in that order, and back. What is no number is passed over.
std::vector<int> ParseCpuList(std::string_view text);
std::string FormatCpuList(std::vector<int> cpus);

// --- The system's calls. Where it has none (macOS): no mask, nothing is kept to anything.
std::vector<int> AllowedCpus(int thread_id = 0);  // the affinity mask of a thread, 0: of the calling one
bool KeepThisThreadOn(std::span<const int> cpus);
int ThisThreadId();  // as AllowedCpus takes it

// Keeps the calling thread on these CPUs, and lets it go at the end. None: does nothing.
class AffinityScope {
 public:
  explicit AffinityScope(std::span<const int> cpus);
  ~AffinityScope();
  AffinityScope(const AffinityScope&) = delete;
  AffinityScope& operator=(const AffinityScope&) = delete;

 private:
  std::vector<int> before_;  // empty: nothing to undo
};

}  // namespace kvart

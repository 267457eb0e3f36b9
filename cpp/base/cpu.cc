#include "base/cpu.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <thread>
#include <tuple>

#if defined(__x86_64__)
#include <cpuid.h>
#endif
#if defined(__linux__)
#include <sched.h>
#include <sys/syscall.h>
#include <unistd.h>
#endif
#if defined(__linux__) && defined(__aarch64__)
#include <sys/auxv.h>
#endif

namespace kvart {
namespace {

constexpr int kMaxThreads = 256;

CpuFeatures Detect() {
  CpuFeatures f;
#if defined(__x86_64__)
  __builtin_cpu_init();
  unsigned eax = 0, ebx = 0, ecx = 0, edx = 0;  // clang 14's __builtin_cpu_supports does not know f16c
  const bool f16c = __get_cpuid(1, &eax, &ebx, &ecx, &edx) != 0 && (ecx & (1u << 29)) != 0;
  f.avx2 = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && f16c;
  f.avx512 = f.avx2 && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
             __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl") &&
             __builtin_cpu_supports("avx512vnni");
#elif defined(__aarch64__) && defined(__linux__)
  constexpr unsigned long kHalf = 1ul << 10, kDot = 1ul << 20;  // HWCAP_ASIMDHP, HWCAP_ASIMDDP
  constexpr unsigned long kI8mm = 1ul << 13;                    // HWCAP2_I8MM
  f.neon = (getauxval(AT_HWCAP) & (kHalf | kDot)) == (kHalf | kDot);
  f.i8mm = f.neon && (getauxval(AT_HWCAP2) & kI8mm) != 0;
#elif defined(__aarch64__)
  f.neon = true;  // Apple: every arm64 Mac has both
#endif
  return f;
}

bool Contains(const std::vector<int>& list, int value) {
  return std::find(list.begin(), list.end(), value) != list.end();
}

// CPUs that the user named, each once, in that order.
Result<std::vector<int>> CheckCpus(const CpuTopology& topology, const std::vector<int>& allowed,
                                   std::span<const int> cpus) {
  std::vector<int> online, wanted;
  for (const LogicalCpu& cpu : topology.cpus) online.push_back(cpu.id);
  if (online.empty()) {
    return Status(StatusCode::kUnsupported, "cpus: this system does not let a program choose its CPUs");
  }
  std::vector<int> missing, outside;
  for (const int cpu : cpus) {
    if (!Contains(online, cpu)) {
      missing.push_back(cpu);
    } else if (!Contains(allowed, cpu)) {
      outside.push_back(cpu);
    } else if (!Contains(wanted, cpu)) {
      wanted.push_back(cpu);
    }
  }
  if (!missing.empty()) {
    return Status(StatusCode::kInvalidArgument,
                  "cpus: found " + FormatCpuList(missing) + "; online on this machine are " + FormatCpuList(online));
  }
  if (!outside.empty()) {
    return Status(
        StatusCode::kInvalidArgument,
        "cpus: found " + FormatCpuList(outside) + "; the affinity mask allows this process " + FormatCpuList(allowed));
  }
  return wanted;
}

// The CPUs that may be used, the ones to take first in front; and how many of them are a good choice.
struct Ranking {
  std::vector<int> cpus;
  int n_good = 0;
  bool all_alike = true;  // the system has nothing to choose wrongly: one node, no slow cores
};

Ranking Rank(const CpuTopology& topology, const std::vector<int>& allowed) {
  struct Entry {
    bool sibling, slow, away;
    LogicalCpu cpu;
  };
  std::vector<Entry> entries;
  std::vector<int> cores;
  double fastest = 0;
  for (const LogicalCpu& cpu : topology.cpus) {
    if (!Contains(allowed, cpu.id)) continue;
    entries.push_back({Contains(cores, cpu.core), false, false, cpu});
    cores.push_back(cpu.core);
    fastest = std::max(fastest, cpu.speed);
  }
  std::vector<double> nodes;  // what the good cores of each are worth together
  for (Entry& entry : entries) {
    entry.slow = entry.cpu.speed < topology.slow_below * fastest;
    nodes.resize(std::max(nodes.size(), static_cast<size_t>(entry.cpu.node) + 1));
    if (!entry.slow && !entry.sibling) nodes[static_cast<size_t>(entry.cpu.node)] += entry.cpu.speed;
  }
  const auto home = std::max_element(nodes.begin(), nodes.end()) - nodes.begin();
  Ranking ranking;
  for (Entry& entry : entries) {
    entry.away = entry.cpu.node != home;
    ranking.n_good += !entry.sibling && !entry.slow && !entry.away;
    ranking.all_alike = ranking.all_alike && !entry.slow && !entry.away;
  }
  std::sort(entries.begin(), entries.end(), [](const Entry& a, const Entry& b) {
    return std::tuple(a.sibling, a.slow, a.away, -a.cpu.speed, a.cpu.id) <
           std::tuple(b.sibling, b.slow, b.away, -b.cpu.speed, b.cpu.id);
  });
  for (const Entry& entry : entries) ranking.cpus.push_back(entry.cpu.id);
  return ranking;
}

}  // namespace

const CpuFeatures& DetectCpu() {
  static const CpuFeatures features = Detect();
  return features;
}

Result<ThreadPlan> PlanThreads(const CpuTopology& topology, const std::vector<int>& allowed, int n_threads,
                               std::span<const int> cpus) {
  ThreadPlan plan;
  if (!cpus.empty()) {
    KVART_ASSIGN_OR_RETURN(plan.cpus, CheckCpus(topology, allowed, cpus));
    const int n_cpus = static_cast<int>(plan.cpus.size());
    plan.n_threads = n_threads > 0 ? n_threads : n_cpus;
    plan.n_running = std::min(plan.n_threads, n_cpus);
    plan.one_each = plan.n_threads >= n_cpus;
    return plan;
  }
  const Ranking ranking = Rank(topology, allowed);
  // A quota of 1.5 CPUs is two threads that rest a quarter of the time: two reach 1.5 x one thread's memory traffic, so
  // that pays from about 1.3 CPUs on. Beyond the rounded quota a thread only takes time from the others.
  const int quota = topology.quota > 0 ? std::max(1, static_cast<int>(std::lround(topology.quota))) : kMaxThreads;
  int there = static_cast<int>(ranking.cpus.size()), good = ranking.n_good;
  if (there == 0) there = good = std::max(1, static_cast<int>(std::thread::hardware_concurrency()));
  plan.n_threads = n_threads > 0 ? n_threads : std::min(good, quota);
  plan.n_running = std::min({plan.n_threads, there, quota});
  if (!ranking.all_alike) plan.cpus.assign(ranking.cpus.begin(), ranking.cpus.begin() + plan.n_running);
  return plan;
}

Result<ThreadPlan> PlanThreads(int n_threads, std::span<const int> cpus) {
  return PlanThreads(ReadCpuTopology(""), AllowedCpus(), n_threads, cpus);
}

int UsableCores() {
  const Result<ThreadPlan> plan = PlanThreads(0, {});
  return plan.ok() ? plan->n_threads : 1;
}

#if defined(__linux__)

namespace {
// A mask as the system calls take it: cpu_set_t ends at 1,024 CPUs, the kernel's own limit is 8,192.
struct Mask {
  static constexpr int kBits = 8 * sizeof(unsigned long), kCpus = 8192, kWords = kCpus / kBits;
  unsigned long words[kWords] = {};
};
}  // namespace

std::vector<int> AllowedCpus(int thread_id) {
  Mask mask;
  std::vector<int> cpus;
  if (sched_getaffinity(thread_id, sizeof mask, reinterpret_cast<cpu_set_t*>(&mask)) != 0) return cpus;
  for (int i = 0; i < Mask::kWords; ++i) {
    for (unsigned long word = mask.words[i]; word != 0; word &= word - 1) {
      cpus.push_back(i * Mask::kBits + std::countr_zero(word));
    }
  }
  return cpus;
}

bool KeepThisThreadOn(std::span<const int> cpus) {
  Mask mask;
  for (const int cpu : cpus) {
    if (cpu >= 0 && cpu < Mask::kCpus) mask.words[cpu / Mask::kBits] |= 1ul << (cpu % Mask::kBits);
  }
  return sched_setaffinity(0, sizeof mask, reinterpret_cast<cpu_set_t*>(&mask)) == 0;
}

int ThisThreadId() {
  return static_cast<int>(syscall(SYS_gettid));
}

#else

std::vector<int> AllowedCpus(int) {
  return {};
}
bool KeepThisThreadOn(std::span<const int>) {
  return false;
}
int ThisThreadId() {
  return 0;
}

#endif

AffinityScope::AffinityScope(std::span<const int> cpus) {
  if (cpus.empty()) return;
  before_ = AllowedCpus();
  if (!KeepThisThreadOn(cpus)) before_.clear();
}

AffinityScope::~AffinityScope() {
  if (!before_.empty()) KeepThisThreadOn(before_);
}

}  // namespace kvart

#include "base/cpu.h"

#include <algorithm>
#include <cstdio>
#include <thread>

#if defined(__x86_64__)
#include <cpuid.h>
#endif
#if defined(__linux__)
#include <sched.h>
#endif
#if defined(__linux__) && defined(__aarch64__)
#include <sys/auxv.h>
#endif

namespace kvart {
namespace {

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

#if defined(__linux__)
// Cores that a cgroup v2 or v1 quota allows, 0 when there is none.
int QuotaCores() {
  double quota = 0, period = 0;
  if (FILE* f = std::fopen("/sys/fs/cgroup/cpu.max", "re")) {
    if (std::fscanf(f, "%lf %lf", &quota, &period) != 2) quota = 0;  // "max 100000" has no number first
    std::fclose(f);
  } else {
    if (FILE* q = std::fopen("/sys/fs/cgroup/cpu/cpu.cfs_quota_us", "re")) {
      if (std::fscanf(q, "%lf", &quota) != 1) quota = 0;
      std::fclose(q);
    }
    if (FILE* p = std::fopen("/sys/fs/cgroup/cpu/cpu.cfs_period_us", "re")) {
      if (std::fscanf(p, "%lf", &period) != 1) period = 0;
      std::fclose(p);
    }
  }
  return quota > 0 && period > 0 ? std::max(1, static_cast<int>(quota / period + 0.5)) : 0;
}
#endif

}  // namespace

const CpuFeatures& DetectCpu() {
  static const CpuFeatures features = Detect();
  return features;
}

int UsableCores() {
  int cores = static_cast<int>(std::thread::hardware_concurrency());
#if defined(__linux__)
  cpu_set_t set;
  if (sched_getaffinity(0, sizeof set, &set) == 0) cores = CPU_COUNT(&set);
  if (const int quota = QuotaCores(); quota > 0) cores = std::min(cores, quota);
#endif
  return std::max(1, cores);
}

}  // namespace kvart

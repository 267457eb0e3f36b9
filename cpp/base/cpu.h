// What processor this is: instruction sets and the cores that this process may use. May depend on: nothing.
#pragma once

namespace kvart {

struct CpuFeatures {
  bool avx2 = false;    // with FMA and F16C
  bool avx512 = false;  // F, BW, DQ, VL and VNNI
  bool neon = false;    // Advanced SIMD with dot products and half precision
  bool i8mm = false;
};

const CpuFeatures& DetectCpu();

// Cores this process may run on: the affinity mask, cut by a cgroup's CPU quota. At least 1.
int UsableCores();

}  // namespace kvart

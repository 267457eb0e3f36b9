// The tables of the instruction sets, each defined in its own folder. May depend on: kernels.h. Read by dispatch.cc
// only.
#pragma once

#include "kernels/kernels.h"

namespace kvart {

const KernelTable& Avx2Kernels();
const KernelTable& Avx512Kernels();
const KernelTable& NeonKernels();

}  // namespace kvart

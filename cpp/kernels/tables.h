// The tables of the instruction sets, each defined in its own folder and read by dispatch.cc; and what their rows are
// made from. May depend on: kernels.h.
#pragma once

#include "kernels/kernels.h"

// X(name in symbols, name in DType) for every weight format: with codes, and of plain numbers.
// clang-format off
#define KVART_CODED_TYPES(X)                                                              \
  X(q4_0, Q4_0) X(q4_1, Q4_1) X(q5_0, Q5_0) X(q5_1, Q5_1) X(q8_0, Q8_0) X(iq4_nl, IQ4_NL) \
  X(q2_k, Q2_K) X(q3_k, Q3_K) X(q4_k, Q4_K) X(q5_k, Q5_K) X(q6_k, Q6_K) X(iq4_xs, IQ4_XS)
// clang-format on
#define KVART_NUMBER_TYPES(X) X(f32, F32) X(f16, F16) X(bf16, BF16)

// A row of a table: KVART_MATMUL_ROW(q4_0, Q4_0, i8, Int8, X8, avx2).
#define KVART_MATMUL_ROW(name, type, x, activations, packing, isa)                                    \
  {"matmul_" #name "_" #x "_" #isa, DType::k##type, Activations::k##activations, Packing::k##packing, \
   matmul_##name##_##x##_##isa},

namespace kvart {

const KernelTable& Avx2Kernels();
const KernelTable& Avx512Kernels();
const KernelTable& NeonKernels();
const KernelTable& NeonI8mmKernels();

}  // namespace kvart

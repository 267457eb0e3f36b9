// Which kernels run here: the best table whose instructions this CPU has, or the one that is asked for.
#include <array>
#include <string>
#include <vector>

#include "base/cpu.h"
#include "kernels/kernels.h"
#include "kernels/scalar/tables_scalar.h"
#include "kernels/tables.h"

namespace kvart {
namespace {

const KernelTable& ScalarTable() {
  static const KernelTable table = {
      .name = "scalar",
      .matmul = {scalar::kMatmul, scalar::kMatmulCount},
      .score = {scalar::kScore, scalar::kScoreCount},
      .refine = scalar::refine_scalar,
      .softmax = scalar::softmax_scalar,
      .mix = {scalar::kMix, scalar::kMixCount},
      .attend_merge = scalar::attend_merge_scalar,
      .rms_norm = scalar::rms_norm_scalar,
      .quantize = scalar::quantize_scalar,
      .silu_mul = scalar::silu_mul_scalar,
      .to_half = scalar::to_half_scalar,
  };
  return table;
}

std::vector<const KernelTable*> FindUsable() {
  std::vector<const KernelTable*> tables;
#ifdef KVART_HAVE_AVX512
  if (DetectCpu().avx512) tables.push_back(&Avx512Kernels());
#endif
#ifdef KVART_HAVE_AVX2
  if (DetectCpu().avx2) tables.push_back(&Avx2Kernels());
#endif
#ifdef KVART_HAVE_NEON
  if (DetectCpu().i8mm) tables.push_back(&NeonI8mmKernels());
  if (DetectCpu().neon) tables.push_back(&NeonKernels());
#endif
  tables.push_back(&ScalarTable());
  return tables;
}

}  // namespace

std::span<const KernelTable* const> UsableKernels() {
  static const std::vector<const KernelTable*> tables = FindUsable();
  return tables;
}

Result<const KernelTable*> SelectKernels(std::string_view forced) {
  if (forced.empty()) return UsableKernels().front();
  std::string usable;
  for (const KernelTable* table : UsableKernels()) {
    if (forced == table->name) return table;
    usable += usable.empty() ? "" : ", ";
    usable += table->name;
  }
  return Status(StatusCode::kInvalidArgument, "KVART_KERNELS=" + std::string(forced.substr(0, 64)) +
                                                  ": not usable on this machine; usable are " + usable);
}

// The first row that matches, in this table, in those it falls back to, or in the scalar one.
template <class Row, class Matches>
const Row* Find(const KernelTable& table, std::span<const Row> KernelTable::*rows, const Matches& matches) {
  for (const KernelTable* t = &table; t != nullptr; t = t->fallback) {
    for (const Row& row : t->*rows) {
      if (matches(row)) return &row;
    }
  }
  return &table == &ScalarTable() ? nullptr : Find(ScalarTable(), rows, matches);
}

const MatmulKernel* FindMatmul(const KernelTable& table, DType type, Activations activations) {
  if (IsFloat(type)) activations = Activations::kFloat;
  return Find(table, &KernelTable::matmul,
              [&](const MatmulKernel& k) { return k.type == type && k.activations == activations; });
}

const ScoreKernel* FindScore(const KernelTable& table, const KvFormat& format) {
  return Find(table, &KernelTable::score, [&](const ScoreKernel& k) {
    return k.code == format.code && (format.is_float() || k.axis == format.axis);
  });
}

const MixKernel* FindMix(const KernelTable& table, const KvFormat& format) {
  return Find(table, &KernelTable::mix, [&](const MixKernel& k) { return k.code == format.code; });
}

}  // namespace kvart

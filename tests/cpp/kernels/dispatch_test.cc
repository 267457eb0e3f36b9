// Which kernels run: the tables that this machine can use, and what KVART_KERNELS may name.
#include <gtest/gtest.h>

#include <cstdio>
#include <set>
#include <string>

#include "base/cpu.h"
#include "kernels/kernel_testing.h"

namespace kvart {
namespace {

std::string Names() {
  std::string names;
  for (const KernelTable* table : UsableKernels()) {
    if (!names.empty()) names += ", ";
    names += table->name;
  }
  return names;
}

TEST(DispatchTest, TablesOfThisMachine) {
  std::printf("kernel tables: %s\n", Names().c_str());
  RecordProperty("tables", Names());
  ASSERT_FALSE(UsableKernels().empty());
  EXPECT_STREQ(UsableKernels().back()->name, "scalar");
  std::set<std::string> names;
  for (const KernelTable* table : UsableKernels()) EXPECT_TRUE(names.insert(table->name).second) << table->name;
  EXPECT_EQ(names.count("avx2"), DetectCpu().avx2 ? 1u : 0u);
  EXPECT_EQ(names.count("neon"), DetectCpu().neon ? 1u : 0u);
  EXPECT_EQ(names.count("neon_i8mm"), DetectCpu().i8mm ? 1u : 0u);
}

TEST(DispatchTest, TheBestIsTheDefault) {
  const auto selected = SelectKernels("");
  ASSERT_TRUE(selected.ok());
  EXPECT_EQ(*selected, UsableKernels().front());
}

TEST(DispatchTest, AskedForByName) {
  for (const KernelTable* table : UsableKernels()) {
    const auto selected = SelectKernels(table->name);
    ASSERT_TRUE(selected.ok()) << table->name;
    EXPECT_EQ(*selected, table);
  }
}

TEST(DispatchTest, UnknownNameTellsWhatThereIs) {
  for (const std::string name : {"sse9", "Scalar", "scalar ", "avx", "0", "none"}) {
    const auto selected = SelectKernels(name);
    ASSERT_FALSE(selected.ok()) << name;
    EXPECT_EQ(selected.status().code(), StatusCode::kInvalidArgument);
    const std::string& message = selected.status().message();
    EXPECT_NE(message.find("KVART_KERNELS=" + name), std::string::npos) << message;
    for (const KernelTable* table : UsableKernels()) EXPECT_NE(message.find(table->name), std::string::npos) << message;
  }
  const auto selected = SelectKernels(std::string(100000, 'x'));
  ASSERT_FALSE(selected.ok());
  EXPECT_LT(selected.status().message().size(), 300u) << "a message of any length helps nobody";
}

TEST(DispatchTest, TablesAreWhole) {
  for (const KernelTable* table : UsableKernels()) {
    EXPECT_TRUE(table->refine && table->softmax && table->attend_merge && table->rms_norm && table->quantize &&
                table->silu_mul && table->to_half)
        << table->name;
    for (const DType type : testing::kAllTypes) {
      EXPECT_NE(FindMatmul(*table, type, Activations::kFloat), nullptr) << table->name << " " << Info(type).name;
      EXPECT_NE(FindMatmul(*table, type, Activations::kInt8), nullptr) << table->name << " " << Info(type).name;
    }
    for (const char* name : {"f32", "f16", "int8", "int4", "int4-sym", "int4-token", "int4-knorm", "int8-g64"}) {
      const KvFormats formats = ParseKvFormats(name, name).value();
      EXPECT_NE(FindScore(*table, formats.k), nullptr) << table->name << " " << name;
      EXPECT_NE(FindMix(*table, formats.v), nullptr) << table->name << " " << name;
    }
    KvFormat unknown;
    unknown.code = static_cast<KvCode>(9);
    EXPECT_EQ(FindScore(*table, unknown), nullptr);
    EXPECT_EQ(FindMix(*table, unknown), nullptr);
    const std::string suffix = std::string("_") + table->name;
    for (const MatmulKernel& kernel : table->matmul) {
      const std::string want = "matmul_" + std::string(Info(kernel.type).name) +
                               (kernel.activations == Activations::kInt8 ? "_i8" : "_f32") + suffix;
      EXPECT_EQ(kernel.name, want);
    }
  }
}

}  // namespace
}  // namespace kvart

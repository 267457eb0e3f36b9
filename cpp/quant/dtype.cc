// The table of number formats. Ids and block sizes are those of the GGUF format. May depend on: base.
#include "quant/dtype.h"

namespace kvart {
namespace {

constexpr DTypeInfo kTypes[] = {
    {DType::kF32, "f32", 1, 4},         {DType::kF16, "f16", 1, 2},           {DType::kQ4_0, "q4_0", 32, 18},
    {DType::kQ4_1, "q4_1", 32, 20},     {DType::kQ5_0, "q5_0", 32, 22},       {DType::kQ5_1, "q5_1", 32, 24},
    {DType::kQ8_0, "q8_0", 32, 34},     {DType::kQ2_K, "q2_k", 256, 84},      {DType::kQ3_K, "q3_k", 256, 110},
    {DType::kQ4_K, "q4_k", 256, 144},   {DType::kQ5_K, "q5_k", 256, 176},     {DType::kQ6_K, "q6_k", 256, 210},
    {DType::kIQ4_NL, "iq4_nl", 32, 18}, {DType::kIQ4_XS, "iq4_xs", 256, 136}, {DType::kBF16, "bf16", 1, 2},
};

// Every id the format has ever given out; "?" where there is none.
constexpr std::string_view kGgmlNames[] = {
    "f32",        "f16",        "q4_0",       "q4_1",  "q4_2",     "q4_3",     "q5_0",     "q5_1",    "q8_0",
    "q8_1",       "q2_k",       "q3_k",       "q4_k",  "q5_k",     "q6_k",     "q8_k",     "iq2_xxs", "iq2_xs",
    "iq3_xxs",    "iq1_s",      "iq4_nl",     "iq3_s", "iq2_s",    "iq4_xs",   "i8",       "i16",     "i32",
    "i64",        "f64",        "iq1_m",      "bf16",  "q4_0_4_4", "q4_0_4_8", "q4_0_8_8", "tq1_0",   "tq2_0",
    "iq4_nl_4_4", "iq4_nl_4_8", "iq4_nl_8_8", "mxfp4", "nvfp4",    "q1_0",
};
static_assert(sizeof(kGgmlNames) / sizeof(kGgmlNames[0]) == 42);

}  // namespace

const DTypeInfo* FindDType(uint32_t ggml_id) {
  for (const DTypeInfo& info : kTypes) {
    if (static_cast<uint32_t>(info.type) == ggml_id) return &info;
  }
  return nullptr;
}

const DTypeInfo& Info(DType type) {
  const DTypeInfo* info = FindDType(static_cast<uint32_t>(type));
  return info != nullptr ? *info : kTypes[0];  // a DType holds none but the enumerators
}

std::string_view GgmlTypeName(uint32_t ggml_id) {
  constexpr size_t kCount = sizeof(kGgmlNames) / sizeof(kGgmlNames[0]);
  return ggml_id < kCount ? kGgmlNames[ggml_id] : std::string_view("?");
}

}  // namespace kvart

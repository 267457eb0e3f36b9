// The number formats of a GGUF file: ids, names, block geometry. May depend on: base.
// Next for the token: gguf/gguf.h names each tensor's DType; quant/quant.h decodes it.
#pragma once

#include <cstdint>
#include <string_view>

namespace kvart {

// Values are the ids of the GGUF format (ggml_type), so that a file's number converts by a checked cast.
enum class DType : uint32_t {
  kF32 = 0,
  kF16 = 1,
  kQ4_0 = 2,
  kQ4_1 = 3,
  kQ5_0 = 6,
  kQ5_1 = 7,
  kQ8_0 = 8,
  kQ2_K = 10,
  kQ3_K = 11,
  kQ4_K = 12,
  kQ5_K = 13,
  kQ6_K = 14,
  kIQ4_NL = 20,
  kIQ4_XS = 23,
  kBF16 = 30,
};

struct DTypeInfo {
  DType type;
  std::string_view name;  // "q5_0", as in file names, lower case
  int block_values;       // values in one block
  int block_bytes;        // bytes of one block
};

// nullptr when the id is not one that kvart reads.
const DTypeInfo* FindDType(uint32_t ggml_id);
const DTypeInfo& Info(DType type);
// The name of any ggml type id, known to kvart or not ("iq2_xxs"), for error messages; "?" when unknown.
std::string_view GgmlTypeName(uint32_t ggml_id);

constexpr bool IsFloat(DType t) {
  return t == DType::kF32 || t == DType::kF16 || t == DType::kBF16;
}

// Bytes of a row of n values. n must be a multiple of block_values.
inline uint64_t RowBytes(DType t, uint64_t n) {
  return n / static_cast<uint64_t>(Info(t).block_values) * static_cast<uint64_t>(Info(t).block_bytes);
}

}  // namespace kvart

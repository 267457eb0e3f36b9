// What the kernel tests share: random rows of any format, aligned room, bitwise comparison.
// May depend on: kernels, quant.
#pragma once

#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <random>
#include <string>
#include <vector>

#include "kernels/kernels.h"
#include "quant/half.h"
#include "quant/quant.h"

namespace kvart::testing {

constexpr DType kAllTypes[] = {DType::kF32,  DType::kF16,  DType::kBF16, DType::kQ4_0,   DType::kQ4_1,
                               DType::kQ5_0, DType::kQ5_1, DType::kQ8_0, DType::kQ2_K,   DType::kQ3_K,
                               DType::kQ4_K, DType::kQ5_K, DType::kQ6_K, DType::kIQ4_NL, DType::kIQ4_XS};

inline const KernelTable& Scalar() {
  return *UsableKernels().back();
}

using Random = std::mt19937;

inline float Uniform(Random& random, float low, float high) {
  // Not std::uniform_real_distribution, which is not the same everywhere.
  return low + (high - low) * static_cast<float>(random() >> 8) * 0x1p-24f;
}
inline std::vector<float> Uniforms(Random& random, int64_t n, float low = -1, float high = 1) {
  std::vector<float> values(static_cast<size_t>(n));
  for (float& value : values) value = Uniform(random, low, high);
  return values;
}

// Where the halves of a block lie (its scale and its min), in bytes.
inline std::vector<size_t> HalfOffsets(DType type) {
  switch (type) {
    case DType::kQ4_0: return {offsetof(BlockQ4_0, d)};
    case DType::kQ4_1: return {offsetof(BlockQ4_1, d), offsetof(BlockQ4_1, m)};
    case DType::kQ5_0: return {offsetof(BlockQ5_0, d)};
    case DType::kQ5_1: return {offsetof(BlockQ5_1, d), offsetof(BlockQ5_1, m)};
    case DType::kQ8_0: return {offsetof(BlockQ8_0, d)};
    case DType::kQ2_K: return {offsetof(BlockQ2_K, d), offsetof(BlockQ2_K, dmin)};
    case DType::kQ3_K: return {offsetof(BlockQ3_K, d)};
    case DType::kQ4_K: return {offsetof(BlockQ4_K, d), offsetof(BlockQ4_K, dmin)};
    case DType::kQ5_K: return {offsetof(BlockQ5_K, d), offsetof(BlockQ5_K, dmin)};
    case DType::kQ6_K: return {offsetof(BlockQ6_K, d)};
    case DType::kIQ4_NL: return {offsetof(BlockIQ4_NL, d)};
    case DType::kIQ4_XS: return {offsetof(BlockIQ4_XS, d)};
    default: return {};
  }
}

// A matrix in GGUF rows: any codes, scales that are finite. `fill` < 0 means random bytes, else every byte of the
// codes.
inline std::vector<uint8_t> RandomWeights(Random& random, DType type, int64_t rows, int64_t cols, int fill = -1) {
  std::vector<uint8_t> bytes(static_cast<size_t>(rows) * RowBytes(type, static_cast<uint64_t>(cols)));
  if (IsFloat(type)) {
    for (size_t i = 0; i < static_cast<size_t>(rows * cols); ++i) {
      const float value = Uniform(random, -1, 1);
      if (type == DType::kF32) {
        std::memcpy(&bytes[4 * i], &value, 4);
      } else {
        const uint16_t half =
            type == DType::kF16 ? FloatToHalf(value) : static_cast<uint16_t>(std::bit_cast<uint32_t>(value) >> 16);
        std::memcpy(&bytes[2 * i], &half, 2);
      }
    }
    return bytes;
  }
  for (uint8_t& byte : bytes) byte = fill >= 0 ? static_cast<uint8_t>(fill) : static_cast<uint8_t>(random());
  for (size_t block = 0; block < bytes.size(); block += static_cast<size_t>(Info(type).block_bytes)) {
    for (const size_t offset : HalfOffsets(type)) {
      // Now and then zero, subnormal or the largest: a half that the formats may hold.
      constexpr uint16_t kRare[] = {0x0000, 0x8000, 0x0001, 0x83ff, 0x7bff, 0xfbff};
      uint16_t half = FloatToHalf(Uniform(random, -0.1f, 0.1f));
      if (fill < 0 && random() % 64 == 0) half = kRare[random() % 6];
      std::memcpy(&bytes[block + offset], &half, 2);
    }
  }
  return bytes;
}

// n bytes, aligned to 64 and then shifted by `shift`. Filled with 0xff, which is NaN in every float format.
class Room {
 public:
  explicit Room(size_t n, size_t shift = 0) : bytes_(n + 64 + shift, 0xff), shift_(shift) {}
  uint8_t* data() {
    const uintptr_t at = reinterpret_cast<uintptr_t>(bytes_.data());
    return bytes_.data() + (64 - at % 64) % 64 + shift_;
  }

 private:
  std::vector<uint8_t> bytes_;
  size_t shift_;
};

// The same bits, or both NaN: which NaN an operation makes is the processor's business.
inline bool SameFloat(float a, float b) {
  return std::bit_cast<uint32_t>(a) == std::bit_cast<uint32_t>(b) || (std::isnan(a) && std::isnan(b));
}

inline ::testing::AssertionResult Same(const std::vector<float>& got, const std::vector<float>& want) {
  if (got.size() != want.size()) return ::testing::AssertionFailure() << got.size() << " values, not " << want.size();
  size_t different = 0, first = 0;
  for (size_t i = got.size(); i-- > 0;) {
    if (SameFloat(got[i], want[i])) continue;
    ++different;
    first = i;
  }
  if (different == 0) return ::testing::AssertionSuccess();
  return ::testing::AssertionFailure() << different << " of " << got.size() << " differ, first at " << first << ": "
                                       << got[first] << ", not " << want[first];
}

// Names each table's instance of a test by the table.
inline std::string TableName(const ::testing::TestParamInfo<const KernelTable*>& info) {
  return info.param->name;
}
#define KVART_TEST_ALL_TABLES(Suite)                                                                        \
  INSTANTIATE_TEST_SUITE_P(                                                                                 \
      Tables, Suite,                                                                                        \
      ::testing::ValuesIn(std::vector<const KernelTable*>(UsableKernels().begin(), UsableKernels().end())), \
      ::kvart::testing::TableName)

}  // namespace kvart::testing

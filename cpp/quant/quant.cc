// Rows of any format, put together from its groups of 32 columns. May depend on: base.
// Next for the token: kernels/, which are tested against DecodeRow.
#include "quant/quant.h"

#include "quant/half.h"
#include "quant/unpack.h"

namespace kvart {
namespace {

using namespace quant_internal;

UnpackGroup UnpackerOf(DType type) {
  switch (type) {
    case DType::kQ4_0: return UnpackQ4_0;
    case DType::kQ4_1: return UnpackQ4_1;
    case DType::kQ5_0: return UnpackQ5_0;
    case DType::kQ5_1: return UnpackQ5_1;
    case DType::kQ8_0: return UnpackQ8_0;
    case DType::kQ2_K: return UnpackQ2_K;
    case DType::kQ3_K: return UnpackQ3_K;
    case DType::kQ4_K: return UnpackQ4_K;
    case DType::kQ5_K: return UnpackQ5_K;
    case DType::kQ6_K: return UnpackQ6_K;
    case DType::kIQ4_NL: return UnpackIQ4_NL;
    case DType::kIQ4_XS: return UnpackIQ4_XS;
    case DType::kF32:
    case DType::kF16:
    case DType::kBF16: return nullptr;
  }
  return nullptr;
}

uint16_t LoadU16(const uint8_t* src) {
  return LoadBlock<uint16_t>(src);
}

// Calls f(block, group in block, group in row) for n groups from group `begin` on.
template <class F>
void ForGroups(DType type, const uint8_t* row, int64_t begin, int64_t n, F f) {
  const DTypeInfo& info = Info(type);
  const int per_block = info.block_values / kGroup;
  for (int64_t g = begin; g < begin + n; ++g) {
    f(row + g / per_block * info.block_bytes, static_cast<int>(g % per_block), g - begin);
  }
}

}  // namespace

void DecodeRow(DType type, const uint8_t* src, int64_t n, float* dst) {
  if (type == DType::kF32) {
    std::memcpy(dst, src, static_cast<size_t>(n) * sizeof(float));
  } else if (type == DType::kF16) {
    for (int64_t i = 0; i < n; ++i) dst[i] = HalfToFloat(LoadU16(src + 2 * i));
  } else if (type == DType::kBF16) {
    for (int64_t i = 0; i < n; ++i) dst[i] = BFloatToFloat(LoadU16(src + 2 * i));
  } else {
    const UnpackGroup unpack = UnpackerOf(type);
    const bool has_min = HasMin(type);  // adding a zero min would turn -0 into +0
    ForGroups(type, src, 0, n / kGroup, [=](const uint8_t* block, int group, int64_t at) {
      int8_t codes[kGroup];
      float scales[2];
      float mins[2];
      unpack(block, group, codes, scales, mins);
      float* out = dst + at * kGroup;
      for (int i = 0; i < kGroup; ++i) {
        const float product = scales[i / 16] * static_cast<float>(codes[i]);
        out[i] = has_min ? product + mins[i / 16] : product;
      }
    });
  }
}

void UnpackCodes(DType type, const uint8_t* row, int64_t block32_begin, int64_t n_blocks32, int8_t* codes,
                 float* scales, float* mins) {
  const UnpackGroup unpack = UnpackerOf(type);
  if (unpack == nullptr) return;
  ForGroups(type, row, block32_begin, n_blocks32, [=](const uint8_t* block, int group, int64_t at) {
    int8_t* group_codes = codes + at * kGroup;
    unpack(block, group, group_codes, scales + 2 * at, mins + 2 * at);
    if (type == DType::kQ8_0) {  // -128 cannot be negated in int8; no encoder writes it
      for (int i = 0; i < kGroup; ++i) group_codes[i] = group_codes[i] < -127 ? int8_t{-127} : group_codes[i];
    }
  });
}

}  // namespace kvart

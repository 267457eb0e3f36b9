#include "quant/quantize.h"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "quant/encode_k.h"
#include "quant/half.h"
#include "quant/quant.h"
#include "quant/scale_search.h"

namespace kvart {
namespace {

using namespace quant_internal;

constexpr float kLargest = 65504.0f;       // of a half: what no scale of a block need exceed
constexpr float kNothing = 0x1p-26f;       // below half of the smallest half: no block format holds more than zero
constexpr float kLeastImportance = 1e-6f;  // of a column, to the greatest in its block

Status CheckValues(DType type, const float* src, int64_t n) {
  const bool wide = type == DType::kF32 || type == DType::kBF16;
  for (int64_t i = 0; i < n; ++i) {
    if (!std::isfinite(src[i])) {
      return Errorf(StatusCode::kInvalidArgument, "column %lld: a weight must be finite, found %f",
                    static_cast<long long>(i), static_cast<double>(src[i]));
    }
    if (!wide && std::fabs(src[i]) > kLargest) {
      return Errorf(StatusCode::kInvalidArgument, "column %lld: %g does not fit in %s, whose largest value is 65504",
                    static_cast<long long>(i), static_cast<double>(src[i]), Info(type).name.data());
    }
  }
  return Status::Ok();
}

// What the squared error of each column of one block costs: its importance, and somewhat more for large values, which
// stand where the model leans on a weight. False where the block holds nothing.
bool WeightsOf(const float* x, const float* importance, int n, float* w) {
  float largest = 0.0f, most = 0.0f, squares = 0.0f;
  for (int i = 0; i < n; ++i) {
    largest = std::max(largest, std::fabs(x[i]));
    squares += x[i] * x[i];
    if (importance != nullptr) most = std::max(most, importance[i]);
  }
  if (largest < kNothing) return false;
  const float mean = squares / static_cast<float>(n);
  for (int i = 0; i < n; ++i) {
    const float relative = most > 0.0f ? importance[i] / most + kLeastImportance : 1.0f;
    w[i] = relative * std::sqrt(2.0f * mean + x[i] * x[i]);
  }
  return true;
}

void PackNibbles(const int8_t* q, uint8_t* qs) {
  for (int i = 0; i < 16; ++i) qs[i] = static_cast<uint8_t>((q[i] & 15) | ((q[i + 16] & 15) << 4));
}

void PackFifthBits(const int8_t* q, uint8_t* qh) {
  std::memset(qh, 0, 4);
  for (int i = 0; i < kGroup; ++i) qh[i / 8] = static_cast<uint8_t>(qh[i / 8] | ((q[i] >> 4) << (i % 8)));
}

// One block of Q4_0, Q4_1, Q5_0 or Q5_1.
template <class Block>
void EncodeGroup(const float* x, const float* w, uint8_t* out) {
  constexpr bool kMin = requires(Block b) {
    b.m;
  };
  constexpr bool kFive = requires(Block b) {
    b.qh;
  };
  constexpr int kLevels = kFive ? 32 : 16;
  constexpr Codes kCodes = {0, kLevels - 1, MinKind::kFree};
  constexpr Codes kCentred = {-kLevels / 2, kLevels / 2 - 1, MinKind::kNone};
  const Codes& codes = kMin ? kCodes : kCentred;
  const Fit fit = FindScale(codes, kGroup, x, w);
  Block block;
  block.d = FloatToHalf(fit.scale);
  float min = 0.0f;
  if constexpr (kMin) {
    block.m = FloatToHalf(fit.min);
    min = HalfToFloat(block.m);
  }
  int8_t q[kGroup];
  Round(codes, kGroup, x, HalfToFloat(block.d), min, q);
  for (int8_t& code : q) code = static_cast<int8_t>(code - codes.low);
  PackNibbles(q, block.qs);
  if constexpr (kFive) PackFifthBits(q, block.qh);
  std::memcpy(out, &block, sizeof(block));
}

void EncodeBlock(DType type, const float* x, const float* w, uint8_t* out) {
  switch (type) {
    case DType::kQ4_0: return EncodeGroup<BlockQ4_0>(x, w, out);
    case DType::kQ4_1: return EncodeGroup<BlockQ4_1>(x, w, out);
    case DType::kQ5_0: return EncodeGroup<BlockQ5_0>(x, w, out);
    case DType::kQ5_1: return EncodeGroup<BlockQ5_1>(x, w, out);
    default: return EncodeSuperBlock(type, x, w, out);
  }
}

// Whether the search is for this type, with or without importances.
bool Searches(DType type, bool importance) {
  switch (type) {
    case DType::kQ2_K:
    case DType::kQ3_K:
    case DType::kQ4_K:
    case DType::kQ5_K:
    case DType::kQ6_K: return true;
    case DType::kQ4_0:
    case DType::kQ4_1:
    case DType::kQ5_0:
    case DType::kQ5_1: return importance;
    default: return false;  // Q8_0 as well: there is next to nothing to gain
  }
}

}  // namespace

bool CanQuantize(DType type) {
  return type != DType::kIQ4_NL && type != DType::kIQ4_XS;
}

Status QuantizeRow(DType type, const float* src, int64_t n, const float* importance, uint8_t* dst) {
  KVART_RETURN_IF_ERROR(CheckValues(type, src, n));
  if (!Searches(type, importance != nullptr)) return EncodeRow(type, src, n, dst);
  const DTypeInfo& info = Info(type);
  if (n < 0 || n % info.block_values != 0) {
    return Errorf(StatusCode::kInvalidArgument, "a row of %lld values is not whole blocks of %d (%s)",
                  static_cast<long long>(n), info.block_values, info.name.data());
  }
  float w[kSuperBlock];
  for (int64_t i = 0; i < n; i += info.block_values) {
    const float* block_importance = importance == nullptr ? nullptr : importance + i;
    uint8_t* out = dst + i / info.block_values * info.block_bytes;
    if (WeightsOf(src + i, block_importance, info.block_values, w)) {
      EncodeBlock(type, src + i, w, out);
    } else {
      std::memset(out, 0, static_cast<size_t>(info.block_bytes));  // scales of zero
    }
  }
  return Status::Ok();
}

}  // namespace kvart

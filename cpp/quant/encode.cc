// Encoders of the simple formats, byte-equal to the `gguf` package. May depend on: base.
// Next stop: nothing in inference; the converter and the tests write rows with these.
#include <cmath>
#include <cstring>

#include "quant/half.h"
#include "quant/quant.h"

namespace kvart {
namespace {

// Rounds a value that is already shifted by the half step. A subnormal scale has an infinite inverse, which makes
// infinities and NaN of the values: these must not reach a float-to-int conversion.
uint8_t Truncate(float v, int max) {
  if (!(v > 0.0f)) return 0;
  return v >= static_cast<float>(max) ? static_cast<uint8_t>(max) : static_cast<uint8_t>(v);
}

float Inverse(float d) {
  return d == 0.0f ? 0.0f : 1.0f / d;
}

// Codes 0 ... 2 * half - 1 around a scale that puts the value of largest magnitude at the code 0. Returns the scale.
float SignedCodes(const float* x, int half, uint8_t* q) {
  float extreme = x[0];
  for (int i = 1; i < kGroup; ++i) {
    if (std::fabs(x[i]) > std::fabs(extreme)) extreme = x[i];
  }
  const float d = extreme / static_cast<float>(-half);
  const float inverse = Inverse(d);
  for (int i = 0; i < kGroup; ++i) {
    q[i] = Truncate(x[i] * inverse + (static_cast<float>(half) + 0.5f), 2 * half - 1);
  }
  return d;
}

// Codes 0 ... max between the smallest and the largest value.
struct Affine {
  float d;
  float min;
};
Affine AffineCodes(const float* x, int max, uint8_t* q) {
  float low = x[0];
  float high = x[0];
  for (int i = 1; i < kGroup; ++i) {
    low = x[i] < low ? x[i] : low;
    high = x[i] > high ? x[i] : high;
  }
  const float d = (high - low) / static_cast<float>(max);
  const float inverse = Inverse(d);
  for (int i = 0; i < kGroup; ++i) q[i] = Truncate((x[i] - low) * inverse + 0.5f, max);
  return {d, low};
}

void PackNibbles(const uint8_t* q, uint8_t* qs) {
  for (int i = 0; i < 16; ++i) qs[i] = static_cast<uint8_t>((q[i] & 15) | ((q[i + 16] & 15) << 4));
}

void PackFifthBits(const uint8_t* q, uint8_t* qh) {
  std::memset(qh, 0, 4);
  for (int i = 0; i < kGroup; ++i) qh[i / 8] = static_cast<uint8_t>(qh[i / 8] | ((q[i] >> 4) << (i % 8)));
}

// Encode one block. x: (32,).
void EncodeBlock(const float* x, BlockQ4_0* b) {
  uint8_t q[kGroup];
  b->d = FloatToHalf(SignedCodes(x, 8, q));
  PackNibbles(q, b->qs);
}

void EncodeBlock(const float* x, BlockQ4_1* b) {
  uint8_t q[kGroup];
  const Affine affine = AffineCodes(x, 15, q);
  b->d = FloatToHalf(affine.d);
  b->m = FloatToHalf(affine.min);
  PackNibbles(q, b->qs);
}

void EncodeBlock(const float* x, BlockQ5_0* b) {
  uint8_t q[kGroup];
  b->d = FloatToHalf(SignedCodes(x, 16, q));
  PackFifthBits(q, b->qh);
  PackNibbles(q, b->qs);
}

void EncodeBlock(const float* x, BlockQ5_1* b) {
  uint8_t q[kGroup];
  const Affine affine = AffineCodes(x, 31, q);
  b->d = FloatToHalf(affine.d);
  b->m = FloatToHalf(affine.min);
  PackFifthBits(q, b->qh);
  PackNibbles(q, b->qs);
}

void EncodeBlock(const float* x, BlockQ8_0* b) {
  float max = 0.0f;
  for (int i = 0; i < kGroup; ++i) max = std::fabs(x[i]) > max ? std::fabs(x[i]) : max;
  const float d = max / 127.0f;
  const float inverse = Inverse(d);
  for (int i = 0; i < kGroup; ++i) {
    const float scaled = std::round(x[i] * inverse);  // halves away from zero
    b->qs[i] = scaled > 127.0f ? 127 : scaled < -127.0f ? -127 : scaled == scaled ? static_cast<int8_t>(scaled) : 0;
  }
  b->d = FloatToHalf(d);
}

template <class Block>
Status EncodeBlocks(const float* src, int64_t n, uint8_t* dst) {
  for (int64_t i = 0; i < n; ++i) {
    if (!std::isfinite(src[i])) {
      return Errorf(StatusCode::kInvalidArgument, "value %lld of the row is not finite: a block format cannot hold it",
                    static_cast<long long>(i));
    }
  }
  for (int64_t i = 0; i < n / kGroup; ++i) {
    Block block;
    EncodeBlock(src + i * kGroup, &block);
    std::memcpy(dst + i * static_cast<int64_t>(sizeof(Block)), &block, sizeof(block));
  }
  return Status::Ok();
}

template <class Convert>
Status EncodeU16(const float* src, int64_t n, uint8_t* dst, Convert convert) {
  for (int64_t i = 0; i < n; ++i) {
    const uint16_t value = convert(src[i]);
    std::memcpy(dst + 2 * i, &value, sizeof(value));
  }
  return Status::Ok();
}

}  // namespace

Status EncodeRow(DType type, const float* src, int64_t n, uint8_t* dst) {
  const DTypeInfo& info = Info(type);
  if (n < 0 || n % info.block_values != 0) {
    return Errorf(StatusCode::kInvalidArgument, "a row of %lld values is not whole blocks of %d (%s)",
                  static_cast<long long>(n), info.block_values, info.name.data());
  }
  switch (type) {
    case DType::kF32: std::memcpy(dst, src, static_cast<size_t>(n) * sizeof(float)); return Status::Ok();
    case DType::kF16: return EncodeU16(src, n, dst, FloatToHalf);
    case DType::kBF16: return EncodeU16(src, n, dst, FloatToBFloat);
    case DType::kQ4_0: return EncodeBlocks<BlockQ4_0>(src, n, dst);
    case DType::kQ4_1: return EncodeBlocks<BlockQ4_1>(src, n, dst);
    case DType::kQ5_0: return EncodeBlocks<BlockQ5_0>(src, n, dst);
    case DType::kQ5_1: return EncodeBlocks<BlockQ5_1>(src, n, dst);
    case DType::kQ8_0: return EncodeBlocks<BlockQ8_0>(src, n, dst);
    default: return Errorf(StatusCode::kUnsupported, "no encoder for %s", info.name.data());
  }
}

}  // namespace kvart

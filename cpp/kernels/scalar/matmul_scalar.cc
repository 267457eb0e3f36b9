// Matrix products for every weight format, straight from GGUF rows: the definition that the fast kernels are tested
// against.
#include <algorithm>
#include <cmath>
#include <cstring>

#include "kernels/scalar/tables_scalar.h"
#include "kernels/tables.h"
#include "quant/quant.h"

namespace kvart::scalar {
namespace {

void Store(const MatmulArgs& a, int64_t row, int64_t i, float acc) {
  if (a.bias != nullptr) acc += a.bias[row];
  float& out = a.out[i * a.out_stride + row - a.row_begin];
  out = a.accumulate ? out + acc : acc;
}

// A row is unpacked once into the scratch and used for all n rows of activations.
template <DType kType>
void MatmulCodes(const MatmulArgs& a) {
  const int64_t n_blocks = a.cols / kGroup;
  float* scales = reinterpret_cast<float*>(a.scratch);             // (n_blocks, 2)
  float* mins = scales + 2 * n_blocks;                             // (n_blocks, 2)
  int8_t* codes = reinterpret_cast<int8_t*>(mins + 2 * n_blocks);  // (n_blocks, 32)
  const uint64_t row_bytes = RowBytes(kType, static_cast<uint64_t>(a.cols));
  constexpr int kScales = kGroup / ScaleColumns(kType);  // scales a block
  constexpr int kColumns = ScaleColumns(kType);

  for (int64_t row = a.row_begin; row < a.row_end; ++row) {
    UnpackCodes(kType, a.weights + static_cast<uint64_t>(row) * row_bytes, 0, n_blocks, codes, scales, mins);
    for (int64_t i = 0; i < a.n; ++i) {
      const ActivationBlock* x = static_cast<const ActivationBlock*>(a.x) + i * n_blocks;
      float acc = 0;
      for (int64_t b = 0; b < n_blocks; ++b) {
        for (int s = 0; s < kScales; ++s) {
          int32_t dot = 0, sum = 0;
          for (int c = s * kColumns; c < (s + 1) * kColumns; ++c) {
            dot += codes[b * kGroup + c] * x[b].q[c];
            sum += x[b].q[c];
          }
          acc = std::fma(static_cast<float>(dot), scales[2 * b + s] * x[b].scale, acc);
          if constexpr (HasMin(kType)) acc = std::fma(mins[2 * b + s], static_cast<float>(sum) * x[b].scale, acc);
        }
      }
      Store(a, row, i, acc);
    }
  }
}

// A row's values, (cols), from the codes that the int8 product takes, so that both multiply the same weights.
template <DType kType>
void Decode(const uint8_t* row, int64_t cols, float* w) {
  if constexpr (IsFloat(kType)) {
    DecodeRow(kType, row, cols, w);
  } else {
    for (int64_t b = 0; b < cols / kGroup; ++b, w += kGroup) {
      int8_t codes[kGroup];
      float scales[2], mins[2];
      UnpackCodes(kType, row, b, 1, codes, scales, mins);
      for (int c = 0; c < kGroup; ++c) {
        const float product = scales[c / 16] * static_cast<float>(codes[c]);
        w[c] = HasMin(kType) ? product + mins[c / 16] : product;
      }
    }
  }
}

template <DType kType>
void MatmulFloat(const MatmulArgs& a) {
  float* w = reinterpret_cast<float*>(a.scratch);  // (cols)
  const uint64_t row_bytes = RowBytes(kType, static_cast<uint64_t>(a.cols));
  for (int64_t row = a.row_begin; row < a.row_end; ++row) {
    Decode<kType>(a.weights + static_cast<uint64_t>(row) * row_bytes, a.cols, w);
    for (int64_t i = 0; i < a.n; ++i) {
      const float* x = static_cast<const float*>(a.x) + i * a.cols;
      float acc = 0;
      for (int64_t b = 0; b < a.cols; b += kGroup) {
        float t = 0;
        for (int64_t c = b; c < b + kGroup; ++c) t = std::fma(w[c], x[c], t);
        acc += t;
      }
      Store(a, row, i, acc);
    }
  }
}

}  // namespace

#define KVART_INT8_ROW(name, type) \
  {"matmul_" #name "_i8_scalar", DType::k##type, Activations::kInt8, Packing::kRows, MatmulCodes<DType::k##type>},
#define KVART_FLOAT_ROW(name, type) \
  {"matmul_" #name "_f32_scalar", DType::k##type, Activations::kFloat, Packing::kRows, MatmulFloat<DType::k##type>},
const MatmulKernel kMatmul[] = {KVART_CODED_TYPES(KVART_INT8_ROW) KVART_CODED_TYPES(KVART_FLOAT_ROW)
                                    KVART_NUMBER_TYPES(KVART_FLOAT_ROW)};
#undef KVART_INT8_ROW
#undef KVART_FLOAT_ROW
const size_t kMatmulCount = std::size(kMatmul);

}  // namespace kvart::scalar

// Products with weights as they lie in the file, for every format: eight rows are unpacked by the format's own functions,
// interleaved into the scratch, and then multiplied as packed weights are.
#include "kernels/neon/kernels_neon.h"
#include "kernels/neon/matmul_f32_inl.h"
#include "quant/quant.h"

namespace kvart::neon {
namespace {

constexpr int64_t kPiece = kSuperBlock;  // columns unpacked at a time: whole blocks of every format

inline const uint8_t* RowAt(const MatmulArgs& a, DType type, int64_t row) {
  return a.weights + static_cast<uint64_t>(row) * RowBytes(type, static_cast<uint64_t>(a.cols));
}

template <int kScales, bool kHasMin>
void UnpackGroup(const MatmulArgs& a, DType type, int64_t row, const Unpacked<kScales, kHasMin>& out) {
  const int64_t n_blocks = a.cols / kGroup;
  for (int64_t first = 0; first < n_blocks; first += kPiece / kGroup) {
    const int64_t n = std::min(kPiece / kGroup, n_blocks - first);
    for (int r = 0; r < kGroupRows; ++r) {
      int8_t codes[kPiece] = {};
      float scales[2 * kPiece / kGroup] = {}, mins[2 * kPiece / kGroup] = {};
      if (row + r < a.row_end) UnpackCodes(type, RowAt(a, type, row + r), first, n, codes, scales, mins);
      for (int64_t b = 0; b < n; ++b) {
        int8_t* to = out.codes + (first + b) * kGroup * kGroupRows + r * 4;
        for (int j = 0; j < 8; ++j) std::memcpy(to + j * 32, codes + b * kGroup + j * 4, 4);
        for (int s = 0; s < kScales; ++s) {
          const int64_t at = ((first + b) * kScales + s) * kGroupRows + r;
          out.scales[at] = scales[2 * b + s];
          if constexpr (kHasMin) out.mins[at] = mins[2 * b + s];
        }
      }
    }
  }
}

template <DType kType>
void MatmulI8(const MatmulArgs& a) {
  constexpr int kScales = kGroup / ScaleColumns(kType);
  const auto unpacked = Unpacked<kScales, HasMin(kType)>::In(a.scratch, a.cols / kGroup);
  for (int64_t row = a.row_begin; row < a.row_end; row += kGroupRows) {
    UnpackGroup(a, kType, row, unpacked);
    AllTokensI8(a, row, unpacked);
  }
}

// Rows row … row + 7 as floats: (cols, 8).
void DecodeGroup(const MatmulArgs& a, DType type, int64_t row, float* out) {
  for (int64_t first = 0; first < a.cols; first += kPiece) {
    const int64_t n = std::min(kPiece, a.cols - first);
    for (int r = 0; r < kGroupRows; ++r) {
      float values[kPiece] = {};
      if (row + r < a.row_end) {
        DecodeRow(type, RowAt(a, type, row + r) + RowBytes(type, static_cast<uint64_t>(first)), n, values);
      }
      for (int64_t c = 0; c < n; ++c) out[(first + c) * kGroupRows + r] = values[c];
    }
  }
}

template <DType kType>
void MatmulF32(const MatmulArgs& a) {
  float* weights = reinterpret_cast<float*>(a.scratch);  // (two groups, cols, 8)
  int64_t row = a.row_begin;
  if (a.n == 1) {
    for (; row + 2 * kGroupRows <= a.row_end; row += 2 * kGroupRows) {
      DecodeGroup(a, kType, row, weights);
      DecodeGroup(a, kType, row + kGroupRows, weights + a.cols * kGroupRows);
      TokensF32<2, 1>(a, row, 0, weights);
    }
  }
  for (; row < a.row_end; row += kGroupRows) {
    DecodeGroup(a, kType, row, weights);
    AllTokensF32(a, row, weights);
  }
}

}  // namespace

#define KVART_I8_ROW(name, type) \
  { "matmul_" name "_i8_rows_neon", type, Activations::kInt8, Packing::kRows, MatmulI8<type> }
#define KVART_F32_ROW(name, type) \
  { "matmul_" name "_f32_rows_neon", type, Activations::kFloat, Packing::kRows, MatmulF32<type> }

const MatmulKernel kMatmulRows[] = {
    KVART_F32_ROW("f32", DType::kF32),       KVART_F32_ROW("bf16", DType::kBF16),
    KVART_I8_ROW("q4_0", DType::kQ4_0),      KVART_I8_ROW("q4_1", DType::kQ4_1),
    KVART_I8_ROW("q5_1", DType::kQ5_1),      KVART_I8_ROW("q2_k", DType::kQ2_K),
    KVART_I8_ROW("q3_k", DType::kQ3_K),      KVART_I8_ROW("q5_k", DType::kQ5_K),
    KVART_I8_ROW("iq4_nl", DType::kIQ4_NL),  KVART_I8_ROW("iq4_xs", DType::kIQ4_XS),
    KVART_F32_ROW("q4_0", DType::kQ4_0),     KVART_F32_ROW("q4_1", DType::kQ4_1),
    KVART_F32_ROW("q5_0", DType::kQ5_0),     KVART_F32_ROW("q5_1", DType::kQ5_1),
    KVART_F32_ROW("q8_0", DType::kQ8_0),     KVART_F32_ROW("q2_k", DType::kQ2_K),
    KVART_F32_ROW("q3_k", DType::kQ3_K),     KVART_F32_ROW("q4_k", DType::kQ4_K),
    KVART_F32_ROW("q5_k", DType::kQ5_K),     KVART_F32_ROW("q6_k", DType::kQ6_K),
    KVART_F32_ROW("iq4_nl", DType::kIQ4_NL), KVART_F32_ROW("iq4_xs", DType::kIQ4_XS),
};
const size_t kMatmulRowsCount = sizeof kMatmulRows / sizeof kMatmulRows[0];

}  // namespace kvart::neon

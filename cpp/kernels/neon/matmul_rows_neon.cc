// Products with weights as they lie in the file, for every format: eight rows are unpacked by the format's own
// functions, interleaved into the scratch, and then multiplied as packed weights are.
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

void matmul_q4_0_i8_neon(const MatmulArgs& args) {
  MatmulI8<DType::kQ4_0>(args);
}
void matmul_q4_1_i8_neon(const MatmulArgs& args) {
  MatmulI8<DType::kQ4_1>(args);
}
void matmul_q5_1_i8_neon(const MatmulArgs& args) {
  MatmulI8<DType::kQ5_1>(args);
}
void matmul_q2_k_i8_neon(const MatmulArgs& args) {
  MatmulI8<DType::kQ2_K>(args);
}
void matmul_q3_k_i8_neon(const MatmulArgs& args) {
  MatmulI8<DType::kQ3_K>(args);
}
void matmul_q5_k_i8_neon(const MatmulArgs& args) {
  MatmulI8<DType::kQ5_K>(args);
}
void matmul_iq4_nl_i8_neon(const MatmulArgs& args) {
  MatmulI8<DType::kIQ4_NL>(args);
}
void matmul_iq4_xs_i8_neon(const MatmulArgs& args) {
  MatmulI8<DType::kIQ4_XS>(args);
}
void matmul_f32_f32_neon(const MatmulArgs& args) {
  MatmulF32<DType::kF32>(args);
}
void matmul_bf16_f32_neon(const MatmulArgs& args) {
  MatmulF32<DType::kBF16>(args);
}
void matmul_q4_0_f32_neon(const MatmulArgs& args) {
  MatmulF32<DType::kQ4_0>(args);
}
void matmul_q4_1_f32_neon(const MatmulArgs& args) {
  MatmulF32<DType::kQ4_1>(args);
}
void matmul_q5_0_f32_neon(const MatmulArgs& args) {
  MatmulF32<DType::kQ5_0>(args);
}
void matmul_q5_1_f32_neon(const MatmulArgs& args) {
  MatmulF32<DType::kQ5_1>(args);
}
void matmul_q8_0_f32_neon(const MatmulArgs& args) {
  MatmulF32<DType::kQ8_0>(args);
}
void matmul_q2_k_f32_neon(const MatmulArgs& args) {
  MatmulF32<DType::kQ2_K>(args);
}
void matmul_q3_k_f32_neon(const MatmulArgs& args) {
  MatmulF32<DType::kQ3_K>(args);
}
void matmul_q4_k_f32_neon(const MatmulArgs& args) {
  MatmulF32<DType::kQ4_K>(args);
}
void matmul_q5_k_f32_neon(const MatmulArgs& args) {
  MatmulF32<DType::kQ5_K>(args);
}
void matmul_q6_k_f32_neon(const MatmulArgs& args) {
  MatmulF32<DType::kQ6_K>(args);
}
void matmul_iq4_nl_f32_neon(const MatmulArgs& args) {
  MatmulF32<DType::kIQ4_NL>(args);
}
void matmul_iq4_xs_f32_neon(const MatmulArgs& args) {
  MatmulF32<DType::kIQ4_XS>(args);
}

}  // namespace kvart::neon

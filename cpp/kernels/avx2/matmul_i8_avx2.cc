// Matrix products with int8 activations: the interleaved formats, and a general one through UnpackCodes for all others.
#include "kernels/avx2/matmul_inl.h"
#include "kernels/avx2/rows_avx2.h"
#include "quant/packed.h"

namespace kvart::avx2 {
namespace {

constexpr int64_t kPrefetchBytes = 2048;  // measured

template <class Block>
const Block* BlockAt(const MatmulArgs& a, int64_t group, int64_t block, int64_t blocks_per_group) {
  return reinterpret_cast<const Block*>(a.weights) + group * blocks_per_group + block;
}

// What lies ahead of the `bytes` that are read now: where a group's parts lie apart, the same part two blocks on.
inline void PrefetchLines(const void* p, int bytes, int64_t ahead = kPrefetchBytes) {
  for (int i = 0; i < bytes; i += 64) _mm_prefetch(static_cast<const char*>(p) + ahead + i, _MM_HINT_T0);
}

inline __m256i Low4(__m256i v) {
  return _mm256_and_si256(v, _mm256_set1_epi8(15));
}
inline __m256 BytesToFloat(const uint8_t* p) {
  return _mm256_cvtepi32_ps(_mm256_cvtepu8_epi32(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(p))));
}
inline __m256 BytesToFloat(const int8_t* p) {
  return _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(p))));
}

struct Q5_0 {
  static constexpr int kZero = 16, kScales = 1;
  static constexpr bool kMin = false, kSigned = false;
  explicit Q5_0(const MatmulArgs& a) : a(a) {}
  const MatmulArgs& a;

  const BlockQ5_0X8& At(int64_t g, int64_t b) const { return *BlockAt<BlockQ5_0X8>(a, g, b, a.cols / 32); }
  void Prefetch(int64_t g, int64_t b) const { PrefetchLines(&At(g, b), sizeof(BlockQ5_0X8)); }
  __m256 Scale(int64_t g, int64_t b, int) const { return LoadHalf8(At(g, b).d); }
  void Codes(int64_t g, int64_t b, __m256i* w) const {
    const BlockQ5_0X8& block = At(g, b);
    const __m256i high = LoadInt(block.qh), bit = _mm256_set1_epi8(16);
#pragma GCC unroll 4
    for (int j = 0; j < 4; ++j) {
      const __m256i v = LoadInt(block.qs + 32 * j);
      const __m256i up = j == 0 ? high : _mm256_srli_epi16(high, j);
      w[j] = _mm256_or_si256(Low4(v), _mm256_and_si256(_mm256_slli_epi16(high, 4 - j), bit));
      w[j + 4] = _mm256_or_si256(Low4(_mm256_srli_epi16(v, 4)), _mm256_and_si256(up, bit));
    }
  }
};

struct Q8_0 {
  static constexpr int kZero = 0, kScales = 1;
  static constexpr bool kMin = false, kSigned = true;
  explicit Q8_0(const MatmulArgs& a) : a(a) {}
  const MatmulArgs& a;

  const BlockQ8_0X8& At(int64_t g, int64_t b) const { return *BlockAt<BlockQ8_0X8>(a, g, b, a.cols / 32); }
  void Prefetch(int64_t g, int64_t b) const { PrefetchLines(&At(g, b), sizeof(BlockQ8_0X8)); }
  __m256 Scale(int64_t g, int64_t b, int) const { return LoadHalf8(At(g, b).d); }
  void Codes(int64_t g, int64_t b, __m256i* w) const {
    for (int j = 0; j < 8; ++j) w[j] = LoadInt(At(g, b).qs + 32 * j);
  }
};

struct Q4_K {
  static constexpr int kZero = 0, kScales = 1;
  static constexpr bool kMin = true, kSigned = false;
  explicit Q4_K(const MatmulArgs& a) : a(a) {}
  const MatmulArgs& a;

  const BlockQ4_KX8& At(int64_t g, int64_t b) const { return *BlockAt<BlockQ4_KX8>(a, g, b / 8, a.cols / 256); }
  void Prefetch(int64_t g, int64_t b) const { PrefetchLines(At(g, b).qs[b % 8], 128, 2 * sizeof(BlockQ4_KX8)); }
  __m256 Scale(int64_t g, int64_t b, int) const {
    return _mm256_mul_ps(LoadHalf8(At(g, b).d), BytesToFloat(At(g, b).scales[b % 8]));
  }
  __m256 Min(int64_t g, int64_t b, int) const {
    const __m256 min = _mm256_mul_ps(LoadHalf8(At(g, b).dmin), BytesToFloat(At(g, b).mins[b % 8]));
    return _mm256_xor_ps(min, _mm256_set1_ps(-0.0f));
  }
  void Codes(int64_t g, int64_t b, __m256i* w) const {
    const uint8_t* qs = At(g, b).qs[b % 8];
#pragma GCC unroll 4
    for (int j = 0; j < 4; ++j) {
      const __m256i v = LoadInt(qs + 32 * j);
      w[j] = Low4(v);
      w[j + 4] = Low4(_mm256_srli_epi16(v, 4));
    }
  }
};

struct Q6_K {
  static constexpr int kZero = 32, kScales = 2;
  static constexpr bool kMin = false, kSigned = false;
  explicit Q6_K(const MatmulArgs& a) : a(a) {}
  const MatmulArgs& a;

  const BlockQ6_KX8& At(int64_t g, int64_t b) const { return *BlockAt<BlockQ6_KX8>(a, g, b / 8, a.cols / 256); }
  void Prefetch(int64_t g, int64_t b) const {
    PrefetchLines(At(g, b).ql[b % 8], 128, 2 * sizeof(BlockQ6_KX8));
    PrefetchLines(At(g, b).qh[b % 8], 64, 2 * sizeof(BlockQ6_KX8));
  }
  __m256 Scale(int64_t g, int64_t b, int s) const {
    return _mm256_mul_ps(LoadHalf8(At(g, b).d), BytesToFloat(At(g, b).scales[b % 8 * 2 + s]));
  }
  void Codes(int64_t g, int64_t b, __m256i* w) const {
    const BlockQ6_KX8& block = At(g, b);
    const __m256i bits = _mm256_set1_epi8(48);
    const __m256i first = LoadInt(block.qh[b % 8]), second = LoadInt(block.qh[b % 8] + 32);
#pragma GCC unroll 4
    for (int j = 0; j < 4; ++j) {
      const __m256i v = LoadInt(block.ql[b % 8] + 32 * j);
      // Bits 2j and 2j+1 go to 4 and 5; what crosses into a neighbouring byte is masked off.
      const __m256i h0 = j < 2 ? _mm256_slli_epi16(first, 4 - 2 * j) : _mm256_srli_epi16(first, 2 * j - 4);
      const __m256i h1 = j < 2 ? _mm256_slli_epi16(second, 4 - 2 * j) : _mm256_srli_epi16(second, 2 * j - 4);
      w[j] = _mm256_or_si256(Low4(v), _mm256_and_si256(h0, bits));
      w[j + 4] = _mm256_or_si256(Low4(_mm256_srli_epi16(v, 4)), _mm256_and_si256(h1, bits));
    }
  }
};

// Any format, from GGUF rows: codes through the scalar UnpackCodes. Right first; a format that matters gets a packing
// of its own.
template <DType kType>
struct AnyRows {
  static constexpr int kZero = 0, kScales = 32 / ScaleColumns(kType);
  static constexpr bool kMin = HasMin(kType), kSigned = true;
  explicit AnyRows(const MatmulArgs& a) : a(a) {}
  const MatmulArgs& a;
  mutable int64_t group = -1, block = -1;
  alignas(32) mutable int8_t codes[8][32];
  alignas(32) mutable float scales[2][8], mins[2][8];

  void Load(int64_t g, int64_t b) const {
    if (g == group && b == block) return;
    group = g;
    block = b;
    const uint64_t row_bytes = RowBytes(kType, static_cast<uint64_t>(a.cols));
    for (int r = 0; r < 8; ++r) {
      float scale[2] = {}, min[2] = {};
      int8_t row[32] = {};
      if (g * 8 + r < a.row_end) {
        UnpackCodes(kType, a.weights + static_cast<uint64_t>(g * 8 + r) * row_bytes, b, 1, row, scale, min);
      }
      for (int j = 0; j < 8; ++j) __builtin_memcpy(codes[j] + 4 * r, row + 4 * j, 4);
      for (int s = 0; s < 2; ++s) {
        scales[s][r] = scale[s];
        mins[s][r] = min[s];
      }
    }
  }
  void Prefetch(int64_t, int64_t) const {}
  __m256 Scale(int64_t g, int64_t b, int s) const {
    Load(g, b);
    return _mm256_load_ps(scales[s]);
  }
  __m256 Min(int64_t g, int64_t b, int s) const {
    Load(g, b);
    return _mm256_load_ps(mins[s]);
  }
  void Codes(int64_t g, int64_t b, __m256i* w) const {
    Load(g, b);
    for (int j = 0; j < 8; ++j) w[j] = LoadInt(codes[j]);
  }
};

}  // namespace

void matmul_q5_0_i8_avx2(const MatmulArgs& a) {
  Matmul<Q5_0>(a);
}
void matmul_q8_0_i8_avx2(const MatmulArgs& a) {
  Matmul<Q8_0>(a);
}
void matmul_q4_k_i8_avx2(const MatmulArgs& a) {
  Matmul<Q4_K>(a);
}
void matmul_q6_k_i8_avx2(const MatmulArgs& a) {
  Matmul<Q6_K>(a);
}
void matmul_q4_0_i8_avx2(const MatmulArgs& a) {
  Matmul<AnyRows<DType::kQ4_0>>(a);
}
void matmul_q4_1_i8_avx2(const MatmulArgs& a) {
  Matmul<AnyRows<DType::kQ4_1>>(a);
}
void matmul_q5_1_i8_avx2(const MatmulArgs& a) {
  Matmul<AnyRows<DType::kQ5_1>>(a);
}
void matmul_q2_k_i8_avx2(const MatmulArgs& a) {
  Matmul<AnyRows<DType::kQ2_K>>(a);
}
void matmul_q3_k_i8_avx2(const MatmulArgs& a) {
  Matmul<AnyRows<DType::kQ3_K>>(a);
}
void matmul_q5_k_i8_avx2(const MatmulArgs& a) {
  Matmul<AnyRows<DType::kQ5_K>>(a);
}
void matmul_iq4_nl_i8_avx2(const MatmulArgs& a) {
  Matmul<AnyRows<DType::kIQ4_NL>>(a);
}
void matmul_iq4_xs_i8_avx2(const MatmulArgs& a) {
  Matmul<AnyRows<DType::kIQ4_XS>>(a);
}

}  // namespace kvart::avx2

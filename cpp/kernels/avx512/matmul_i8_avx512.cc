// Matrix products with int8 activations: the interleaved formats, and a general one through UnpackCodes for all others.
#include "kernels/avx512/kernels_avx512.h"
#include "kernels/avx512/matmul_inl.h"
#include "quant/packed.h"

namespace kvart::avx512 {
namespace {

constexpr int64_t kPrefetchBytes = 2048;  // measured: 1 KB is too near here, 4 KB no better

template <class Block>
const Block* BlockAt(const MatmulArgs& a, int64_t group, int64_t block, int64_t blocks_per_group) {
  return reinterpret_cast<const Block*>(a.weights) + group * blocks_per_group + block;
}

// What lies ahead of the `bytes` that are read now: where a group's parts lie apart, the same part two blocks on.
inline void PrefetchLines(const void* p, int bytes, int64_t ahead = kPrefetchBytes) {
  for (int i = 0; i < bytes; i += 64) _mm_prefetch(static_cast<const char*>(p) + ahead + i, _MM_HINT_T0);
}

inline __m256 BytesToFloat(const uint8_t* p) {
  return _mm256_cvtepi32_ps(_mm256_cvtepu8_epi32(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(p))));
}
inline __m256 BytesToFloat(const int8_t* p) {
  return _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(p))));
}
// 32 bytes in both halves.
inline __m512i Twice(const uint8_t* p) {
  return _mm512_broadcast_i64x4(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)));
}
inline __m512i Halves(char low, char high) {
  return _mm512_inserti64x4(_mm512_set1_epi8(low), _mm256_set1_epi8(high), 1);
}

struct Q5_0 {
  static constexpr int kZero = 16, kScales = 1;
  static constexpr bool kMin = false;
  explicit Q5_0(const MatmulArgs& a) : a(a) {}
  const MatmulArgs& a;

  const BlockQ5_0X8& At(int64_t g, int64_t b) const { return *BlockAt<BlockQ5_0X8>(a, g, b, a.cols / 32); }
  void Prefetch(int64_t g, int64_t b) const { PrefetchLines(&At(g, b), sizeof(BlockQ5_0X8)); }
  __m256 Scale(int64_t g, int64_t b, int) const { return LoadHalf8(At(g, b).d); }
  void Codes(int64_t g, int64_t b, __m512i* w) const {
    const BlockQ5_0X8& block = At(g, b);
    const __m512i high = Twice(block.qh), first = LoadInt(block.qs), second = LoadInt(block.qs + 64);
    const __m512i codes[4] = {Low4(first), Low4(second), High4(first), High4(second)};
#pragma GCC unroll 4
    for (int i = 0; i < 4; ++i) {
      const __mmask64 set =
          _mm512_test_epi8_mask(high, Halves(static_cast<char>(1 << 2 * i), static_cast<char>(2 << 2 * i)));
      w[i] = _mm512_mask_add_epi8(codes[i], set, codes[i], _mm512_set1_epi8(16));
    }
  }
};

struct Q8_0 {
  static constexpr int kZero = 128, kScales = 1;
  static constexpr bool kMin = false;
  explicit Q8_0(const MatmulArgs& a) : a(a) {}
  const MatmulArgs& a;

  const BlockQ8_0X8& At(int64_t g, int64_t b) const { return *BlockAt<BlockQ8_0X8>(a, g, b, a.cols / 32); }
  void Prefetch(int64_t g, int64_t b) const { PrefetchLines(&At(g, b), sizeof(BlockQ8_0X8)); }
  __m256 Scale(int64_t g, int64_t b, int) const { return LoadHalf8(At(g, b).d); }
  void Codes(int64_t g, int64_t b, __m512i* w) const {
#pragma GCC unroll 4
    for (int i = 0; i < 4; ++i) {
      w[i] = _mm512_xor_si512(LoadInt(At(g, b).qs + 64 * i), _mm512_set1_epi8(static_cast<char>(0x80)));
    }
  }
};

struct Q4_K {
  static constexpr int kZero = 0, kScales = 1;
  static constexpr bool kMin = true;
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
  void Codes(int64_t g, int64_t b, __m512i* w) const {
    const uint8_t* qs = At(g, b).qs[b % 8];
    const __m512i first = LoadInt(qs), second = LoadInt(qs + 64);
    w[0] = Low4(first);
    w[1] = Low4(second);
    w[2] = High4(first);
    w[3] = High4(second);
  }
};

struct Q6_K {
  static constexpr int kZero = 32, kScales = 2;
  static constexpr bool kMin = false;
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
  void Codes(int64_t g, int64_t b, __m512i* w) const {
    const BlockQ6_KX8& block = At(g, b);
    const __m512i bits = _mm512_set1_epi8(48);
    const __m512i first = LoadInt(block.ql[b % 8]), second = LoadInt(block.ql[b % 8] + 64);
    const __m512i h0 = Twice(block.qh[b % 8]), h1 = Twice(block.qh[b % 8] + 32);
    // Vector j's two bits lie at 2 (j % 4) and go to 4; what crosses into a neighbouring byte is masked off.
    const __m512i up = HalvesOf16(4, 2), down = HalvesOf16(0, 2);
    w[0] = _mm512_or_si512(Low4(first), _mm512_and_si512(_mm512_sllv_epi16(h0, up), bits));
    w[1] = _mm512_or_si512(Low4(second), _mm512_and_si512(_mm512_srlv_epi16(h0, down), bits));
    w[2] = _mm512_or_si512(High4(first), _mm512_and_si512(_mm512_sllv_epi16(h1, up), bits));
    w[3] = _mm512_or_si512(High4(second), _mm512_and_si512(_mm512_srlv_epi16(h1, down), bits));
  }
  static __m512i HalvesOf16(short low, short high) {
    return _mm512_inserti64x4(_mm512_set1_epi16(low), _mm256_set1_epi16(high), 1);
  }
};

// Any format, from GGUF rows: codes through the scalar UnpackCodes.
template <DType kType>
struct AnyRows {
  static constexpr int kZero = 128, kScales = 32 / ScaleColumns(kType);
  static constexpr bool kMin = HasMin(kType);
  explicit AnyRows(const MatmulArgs& a) : a(a) {}
  const MatmulArgs& a;
  mutable int64_t group = -1, block = -1;
  alignas(64) mutable int8_t codes[8][32];
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
  void Codes(int64_t g, int64_t b, __m512i* w) const {
    Load(g, b);
    for (int i = 0; i < 4; ++i) {
      w[i] = _mm512_xor_si512(_mm512_load_si512(codes[2 * i]), _mm512_set1_epi8(static_cast<char>(0x80)));
    }
  }
};

}  // namespace

void matmul_q5_0_i8_avx512(const MatmulArgs& a) {
  Matmul<Q5_0>(a);
}
void matmul_q8_0_i8_avx512(const MatmulArgs& a) {
  Matmul<Q8_0>(a);
}
void matmul_q4_k_i8_avx512(const MatmulArgs& a) {
  Matmul<Q4_K>(a);
}
void matmul_q6_k_i8_avx512(const MatmulArgs& a) {
  Matmul<Q6_K>(a);
}
void matmul_q4_0_i8_avx512(const MatmulArgs& a) {
  Matmul<AnyRows<DType::kQ4_0>>(a);
}
void matmul_q4_1_i8_avx512(const MatmulArgs& a) {
  Matmul<AnyRows<DType::kQ4_1>>(a);
}
void matmul_q5_1_i8_avx512(const MatmulArgs& a) {
  Matmul<AnyRows<DType::kQ5_1>>(a);
}
void matmul_q2_k_i8_avx512(const MatmulArgs& a) {
  Matmul<AnyRows<DType::kQ2_K>>(a);
}
void matmul_q3_k_i8_avx512(const MatmulArgs& a) {
  Matmul<AnyRows<DType::kQ3_K>>(a);
}
void matmul_q5_k_i8_avx512(const MatmulArgs& a) {
  Matmul<AnyRows<DType::kQ5_K>>(a);
}
void matmul_iq4_nl_i8_avx512(const MatmulArgs& a) {
  Matmul<AnyRows<DType::kIQ4_NL>>(a);
}
void matmul_iq4_xs_i8_avx512(const MatmulArgs& a) {
  Matmul<AnyRows<DType::kIQ4_XS>>(a);
}

}  // namespace kvart::avx512

// Weights of eight rows interleaved (quant/packed.h), unpacked as they are read: one template for all formats with
// codes. Included by kernels/avx512 only.
#pragma once

#include "kernels/avx512/avx512_inl.h"
#include "quant/packed.h"

namespace kvart::avx512 {

inline __m512i And(__m512i v, int mask) {
  return _mm512_and_si512(v, _mm512_set1_epi8(static_cast<char>(mask)));
}
// 32 bytes in both halves.
inline __m512i Twice(const uint8_t* p) {
  return _mm512_broadcast_i64x4(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)));
}
// To the left, or to the right if negative; what crosses into a neighbouring byte is to be masked off.
inline __m512i Move(__m512i v, int bits) {
  return bits >= 0 ? _mm512_slli_epi16(v, static_cast<unsigned>(bits))
                   : _mm512_srli_epi16(v, static_cast<unsigned>(-bits));
}
// w | (v & mask)
inline __m512i OrAnd(__m512i w, __m512i v, int mask) {
  return _mm512_ternarylogic_epi64(v, _mm512_set1_epi8(static_cast<char>(mask)), w, 0xea);
}
inline __m256i WidenBytes(const uint8_t* p) {
  return _mm256_cvtepu8_epi32(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(p)));
}
inline __m256i WidenBytes(const int8_t* p) {
  return _mm256_cvtepi8_epi32(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(p)));
}

// The codes of 32 columns: w[4], two of the format's vectors in each.
template <class Group>
__attribute__((always_inline)) inline void ReadCodes(const Group& in, __m512i* w) {
  if constexpr (HasQ8<Group>) {
    for (int i = 0; i < 4; ++i) w[i] = LoadInt(in.q8[2 * i]);
  }
  if constexpr (HasQ4<Group>) {
#pragma GCC unroll 2
    for (int i = 0; i < 2; ++i) {
      const __m512i v = LoadInt(in.q4[2 * i]);
      w[i] = Low4(v);
      w[i + 2] = High4(v);
    }
  }
  if constexpr (HasQ2<Group>) {
    const __m512i plane = LoadInt(in.q2);
#pragma GCC unroll 4
    for (int i = 0; i < 4; ++i) {
      const __m512i bits = Move(plane, kQ2At<Group> - 2 * i);
      w[i] = HasQ4<Group> ? OrAnd(w[i], bits, 3 << kQ2At<Group>) : And(bits, 3);
    }
  }
  if constexpr (HasQ1<Group>) {
    const __m512i plane = Twice(in.q1);
#pragma GCC unroll 4
    for (int i = 0; i < 4; ++i) {
      const __m512i bit = _mm512_inserti64x4(_mm512_set1_epi8(static_cast<char>(1 << 2 * i)),
                                             _mm256_set1_epi8(static_cast<char>(2 << 2 * i)), 1);
      w[i] = _mm512_mask_add_epi8(w[i], _mm512_test_epi8_mask(plane, bit), w[i], _mm512_set1_epi8(1 << kQ1At<Group>));
    }
  }
}

// See F in matmul_inl.h.
template <DType kType>
struct Packed {
  using Block = BlockX8<kType>;
  static constexpr uint64_t kGroups = kColumnsX8<Block> / 32;
  static constexpr bool kSigned = MaxCode(kType) == 127, kMin = HasMin(kType);
  static constexpr int kScales = 32 / ScaleColumns(kType), kZero = kSigned ? 128 : ZeroCode(kType);

  const Block* blocks;
  uint64_t blocks_per_row;
  explicit Packed(const MatmulArgs& a)
      : blocks(reinterpret_cast<const Block*>(a.weights)),
        blocks_per_row(static_cast<uint64_t>(a.cols) / 32 / kGroups) {}

  const Block& BlockOf(uint64_t g, uint64_t b) const { return blocks[g * blocks_per_row + b / kGroups]; }
  const auto& GroupOf(uint64_t g, uint64_t b) const {
    if constexpr (kGroups > 1)
      return BlockOf(g, b).groups[b % kGroups];
    else
      return BlockOf(g, b);
  }

  void Prefetch(uint64_t g, uint64_t b) const {
    constexpr int64_t kAhead = 8192;  // measured: 2 KB is 4 % slower
    const char* now = reinterpret_cast<const char*>(&GroupOf(g, b));
    for (size_t i = 0; i < sizeof(GroupOf(g, b)); i += 64) _mm_prefetch(now + kAhead + i, _MM_HINT_T0);
  }
  void Codes(uint64_t g, uint64_t b, __m512i* w) const {
    ReadCodes(GroupOf(g, b), w);
    if constexpr (HasLevels(kType)) {
      const __m512i levels = _mm512_broadcast_i32x4(_mm_loadu_si128(reinterpret_cast<const __m128i*>(kIq4Values)));
      for (int i = 0; i < 4; ++i) w[i] = _mm512_shuffle_epi8(levels, w[i]);
    }
    if constexpr (kSigned) {
      for (int i = 0; i < 4; ++i) w[i] = _mm512_xor_si512(w[i], _mm512_set1_epi8(static_cast<char>(0x80)));
    }
  }
  __m256 Scale(uint64_t g, uint64_t b, int s) const {
    const __m256 d = LoadHalf8(BlockOf(g, b).d);
    if constexpr (kGroups == 1) {
      return d;
    } else {
      __m256i scale = WidenBytes(GroupOf(g, b).scales[s]);
      if constexpr (kType == DType::kQ2_K) scale = _mm256_and_si256(scale, _mm256_set1_epi32(15));
      return _mm256_mul_ps(d, _mm256_cvtepi32_ps(scale));
    }
  }
  __m256 Min(uint64_t g, uint64_t b, int s) const {
    if constexpr (kGroups == 1) {
      return LoadHalf8(BlockOf(g, b).m);
    } else {
      __m256i min;
      if constexpr (kType == DType::kQ2_K)
        min = _mm256_srli_epi32(WidenBytes(GroupOf(g, b).scales[s]), 4);
      else
        min = WidenBytes(GroupOf(g, b).mins[s]);
      // -(dmin * min): the negative zero that is added leaves all else as it is.
      return _mm256_fnmadd_ps(LoadHalf8(BlockOf(g, b).dmin), _mm256_cvtepi32_ps(min), _mm256_set1_ps(-0.0f));
    }
  }
};

}  // namespace kvart::avx512

// Weights of eight rows interleaved (quant/packed.h), unpacked as they are read: one template for all formats with
// codes. Included by kernels/avx2 only.
#pragma once

#include "kernels/avx2/avx2_inl.h"
#include "quant/packed.h"

namespace kvart::avx2 {

inline __m256i And(__m256i v, int mask) {
  return _mm256_and_si256(v, _mm256_set1_epi8(static_cast<char>(mask)));
}
// To the left, or to the right if negative; what crosses into a neighbouring byte is to be masked off.
inline __m256i Move(__m256i v, int bits) {
  return bits >= 0 ? _mm256_slli_epi16(v, bits) : _mm256_srli_epi16(v, -bits);
}
inline __m256i WidenBytes(const uint8_t* p) {
  return _mm256_cvtepu8_epi32(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(p)));
}
inline __m256i WidenBytes(const int8_t* p) {
  return _mm256_cvtepi8_epi32(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(p)));
}

// The codes of 32 columns: w[8].
template <class Group>
__attribute__((always_inline)) inline void ReadCodes(const Group& in, __m256i* w) {
  if constexpr (HasQ8<Group>) {
    for (int j = 0; j < 8; ++j) w[j] = LoadInt(in.q8[j]);
  }
  if constexpr (HasQ4<Group>) {
#pragma GCC unroll 4
    for (int j = 0; j < 4; ++j) {
      const __m256i v = LoadInt(in.q4[j]);
      w[j] = And(v, 15);
      w[j + 4] = And(_mm256_srli_epi16(v, 4), 15);
    }
  }
  if constexpr (HasQ2<Group>) {
    const __m256i planes[2] = {LoadInt(in.q2[0]), LoadInt(in.q2[1])};
#pragma GCC unroll 8
    for (int j = 0; j < 8; ++j) {
      const __m256i bits = And(Move(planes[j % 2], kQ2At<Group> - j / 2 * 2), 3 << kQ2At<Group>);
      w[j] = HasQ4<Group> ? _mm256_or_si256(w[j], bits) : bits;
    }
  }
  if constexpr (HasQ1<Group>) {
    const __m256i plane = LoadInt(in.q1);
#pragma GCC unroll 8
    for (int j = 0; j < 8; ++j) w[j] = _mm256_or_si256(w[j], And(Move(plane, kQ1At<Group> - j), 1 << kQ1At<Group>));
  }
}

template <DType kType>
struct Packed {
  using Block = BlockX8<kType>;
  static constexpr uint64_t kGroups = kColumnsX8<Block> / 32;
  static constexpr int kScales = 32 / ScaleColumns(kType), kZero = ZeroCode(kType), kMaxCode = MaxCode(kType);
  static constexpr bool kMin = HasMin(kType), kSigned = kMaxCode == 127;

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
    constexpr int64_t kAhead = 4096;  // measured
    const char* now = reinterpret_cast<const char*>(&GroupOf(g, b));
    for (size_t i = 0; i < sizeof(GroupOf(g, b)); i += 64) _mm_prefetch(now + kAhead + i, _MM_HINT_T0);
  }
  void Codes(uint64_t g, uint64_t b, __m256i* w) const {
    ReadCodes(GroupOf(g, b), w);
    if constexpr (HasLevels(kType)) {
      const __m256i levels = _mm256_broadcastsi128_si256(_mm_loadu_si128(reinterpret_cast<const __m128i*>(kIq4Values)));
      for (int j = 0; j < 8; ++j) w[j] = _mm256_shuffle_epi8(levels, w[j]);
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

}  // namespace kvart::avx2

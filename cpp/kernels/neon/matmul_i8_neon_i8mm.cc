// Matrix products of several tokens with int8 activations by SMMLA: two rows by two tokens over eight columns, twice
// the work of a dot instruction. A single token would leave half of it unused and goes to the NEON kernel.
#include "kernels/neon/kernels_neon.h"
#include "kernels/neon/packed_inl.h"

namespace kvart::neon {
namespace {

constexpr int kGroupsAtOnce = 2;  // row groups that share what is loaded of the activations
constexpr int kPairsAtOnce = 2;   // of tokens: with the groups' rows, half of the registers are sums

// 32 columns of eight rows, unpacked. A sum's four lanes are two rows by two tokens: (row 0, token 0), (0, 1), (1, 0),
// (1, 1); scales and mins lie as these want them.
template <int kScaleCount, bool kMin>
struct Rows8 {
  static constexpr int kScales = kScaleCount;
  static constexpr bool kHasMin = kMin;
  int8_t w[4][4][16];  // (pairs of rows, eights of columns, two rows by eight columns)
  float scale[kScales][4][4];
  float min[kMin ? kScales : 1][4][4];

  void Write(const Block8<kScales, kMin>& block, int8_t zero) {
    KVART_UNROLL
    for (int e = 0; e < 4; ++e) {
      KVART_UNROLL
      for (int side = 0; side < 2; ++side) {  // rows 0-3, rows 4-7
        const int8x16_t* codes = block.w + 4 * e + side;
        const int32x4_t left = vreinterpretq_s32_s8(vsubq_s8(codes[0], vdupq_n_s8(zero)));
        const int32x4_t right = vreinterpretq_s32_s8(vsubq_s8(codes[2], vdupq_n_s8(zero)));
        vst1q_s8(w[2 * side][e], vreinterpretq_s8_s32(vzip1q_s32(left, right)));
        vst1q_s8(w[2 * side + 1][e], vreinterpretq_s8_s32(vzip2q_s32(left, right)));
      }
    }
    KVART_UNROLL
    for (int s = 0; s < kScales; ++s) {
      WriteTwice(block.scale[s], scale[s]);
      if constexpr (kMin) WriteTwice(block.min[s], min[s]);
    }
  }

 private:
  static void WriteTwice(const F8& lanes, float (*out)[4]) {
    vst1q_f32(out[0], vzip1q_f32(lanes.lo, lanes.lo));
    vst1q_f32(out[1], vzip2q_f32(lanes.lo, lanes.lo));
    vst1q_f32(out[2], vzip1q_f32(lanes.hi, lanes.hi));
    vst1q_f32(out[3], vzip2q_f32(lanes.hi, lanes.hi));
  }
};

// Of two tokens, in the order of a sum's lanes.
inline float32x4_t ForPair(float first, float second) {
  const float32x2_t both = vset_lane_f32(second, vdup_n_f32(first), 1);
  return vcombine_f32(both, both);
}

// Tokens i … i + 2 P - 1 of G row groups. blocks: (G, cols / 32). Behind the last token it is computed again, for
// nobody.
template <int G, int P, class Block>
void PairsI8(const MatmulArgs& a, int64_t row, int64_t i, const Block* blocks) {
  constexpr int kScales = Block::kScales, kEights = 4 / kScales;  // eights of columns under one scale
  const int64_t n_blocks = a.cols / 32;
  const ActivationBlock* x[2 * P];  // (n_blocks)
  KVART_UNROLL
  for (int t = 0; t < 2 * P; ++t) {
    x[t] = static_cast<const ActivationBlock*>(a.x) + std::min(i + t, a.n - 1) * n_blocks;
  }
  float32x4_t acc[G][4][P];
  KVART_UNROLL
  for (int g = 0; g < G; ++g) {
    KVART_UNROLL
    for (int r = 0; r < 4; ++r) {
      KVART_UNROLL
      for (int p = 0; p < P; ++p) acc[g][r][p] = vdupq_n_f32(0);
    }
  }
  for (int64_t b = 0; b < n_blocks; ++b) {
    int8x16_t q[P][4];  // two tokens by eight columns
    float32x4_t x_scale[P];
    KVART_UNROLL
    for (int p = 0; p < P; ++p) {
      const ActivationBlock &first = x[2 * p][b], &second = x[2 * p + 1][b];
      KVART_UNROLL
      for (int h = 0; h < 2; ++h) {
        const int64x2_t left = vreinterpretq_s64_s8(vld1q_s8(first.q + 16 * h));
        const int64x2_t right = vreinterpretq_s64_s8(vld1q_s8(second.q + 16 * h));
        q[p][2 * h] = vreinterpretq_s8_s64(vzip1q_s64(left, right));
        q[p][2 * h + 1] = vreinterpretq_s8_s64(vzip2q_s64(left, right));
      }
      x_scale[p] = ForPair(first.scale, second.scale);
    }
    KVART_UNROLL
    for (int s = 0; s < kScales; ++s) {
      float32x4_t x_sum[P];
      if constexpr (Block::kHasMin) {
        KVART_UNROLL
        for (int p = 0; p < P; ++p) {
          x_sum[p] = ForPair(SumOf<kScales>(x[2 * p][b], s), SumOf<kScales>(x[2 * p + 1][b], s));
        }
      }
      KVART_UNROLL
      for (int g = 0; g < G; ++g) {
        const Block& block = blocks[g * n_blocks + b];
        KVART_UNROLL
        for (int r = 0; r < 4; ++r) {
          int32x4_t dot[P];
          KVART_UNROLL
          for (int p = 0; p < P; ++p) dot[p] = vdupq_n_s32(0);
          KVART_UNROLL
          for (int e = s * kEights; e < (s + 1) * kEights; ++e) {
            const int8x16_t w = vld1q_s8(block.w[r][e]);
            KVART_UNROLL
            for (int p = 0; p < P; ++p) dot[p] = vmmlaq_s32(dot[p], w, q[p][e]);
          }
          const float32x4_t scale = vld1q_f32(block.scale[s][r]);
          KVART_UNROLL
          for (int p = 0; p < P; ++p) {
            float32x4_t& sum = acc[g][r][p];
            sum = vfmaq_f32(sum, vcvtq_f32_s32(dot[p]), vmulq_f32(scale, x_scale[p]));
            if constexpr (Block::kHasMin) {
              sum = vfmaq_f32(sum, vld1q_f32(block.min[s][r]), x_sum[p]);
            }
          }
        }
      }
    }
  }
  KVART_UNROLL
  for (int g = 0; g < G; ++g) {
    KVART_UNROLL
    for (int p = 0; p < P; ++p) {
      const auto sum = [&](int r) { return acc[g][r][p]; };
      const int64_t first = i + 2 * p, group = row + g * kGroupRows;
      StoreRows(a, group, first, {vuzp1q_f32(sum(0), sum(1)), vuzp1q_f32(sum(2), sum(3))});
      if (first + 1 < a.n) {
        StoreRows(a, group, first + 1, {vuzp2q_f32(sum(0), sum(1)), vuzp2q_f32(sum(2), sum(3))});
      }
    }
  }
}

// All tokens of G row groups. tile: room for (G, cols / 32).
template <int G, class Format, class Block>
void RowGroups(const MatmulArgs& a, int64_t row, Block* tile) {
  const int64_t n_blocks = a.cols / 32;
  for (int g = 0; g < G; ++g) {
    const Format format(a, row + g * kGroupRows);
    Block8<Format::kScales, Format::kHasMin> block;
    for (int64_t b = 0; b < n_blocks; ++b) {
      format.Read(b, block);
      tile[g * n_blocks + b].Write(block, Format::kZero);
    }
  }
  int64_t i = 0;
  for (; i + 2 < a.n; i += 2 * kPairsAtOnce) PairsI8<G, kPairsAtOnce>(a, row, i, tile);
  if (i < a.n) PairsI8<G, 1>(a, row, i, tile);
}

template <class Format>
void Matmul(const MatmulArgs& a) {
  auto* tile = reinterpret_cast<Rows8<Format::kScales, Format::kHasMin>*>(a.scratch);
  static_assert(sizeof *tile * kGroupsAtOnce <= 32 * 8 * sizeof(float) * 2);  // MatmulScratchBytes
  int64_t row = a.row_begin;
  for (; row + kGroupRows < a.row_end; row += kGroupsAtOnce * kGroupRows)
    RowGroups<kGroupsAtOnce, Format>(a, row, tile);
  if (row < a.row_end) RowGroups<1, Format>(a, row, tile);
}

}  // namespace

#define KVART_KERNEL(name, type)                           \
  void matmul_##name##_i8_neon_i8mm(const MatmulArgs& a) { \
    if (a.n == 1)                                          \
      matmul_##name##_i8_neon(a);                          \
    else                                                   \
      Matmul<Packed<DType::k##type>>(a);                   \
  }
KVART_CODED_TYPES(KVART_KERNEL)
#undef KVART_KERNEL

}  // namespace kvart::neon

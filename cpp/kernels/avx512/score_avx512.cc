// Scores of one page's keys: sixteen tokens at a time, up to eight query rows share every key that is loaded.
#include <algorithm>

#include "kernels/avx512/kernels_avx512.h"
#include "kernels/avx512/kv_int_inl.h"

namespace kvart::avx512 {
namespace {

// Channel c of tokens t … t + 15 from two tiles of eight tokens; the last tile may be the only one.
inline __m512 LoadTiles(const uint16_t* low, const uint16_t* high) {
  const __m256i both =
      _mm256_inserti128_si256(_mm256_castsi128_si256(_mm_loadu_si128(reinterpret_cast<const __m128i*>(low))),
                              _mm_loadu_si128(reinterpret_cast<const __m128i*>(high)), 1);
  return _mm512_cvtph_ps(both);
}
inline __m512 LoadTiles(const float* low, const float* high) {
  return _mm512_castsi512_ps(LoadPair(low, high));
}

template <class K>
struct Float {
  template <int R>
  struct Rows {
    static void Run(const ScoreArgs& a) {
      const int64_t tile = int64_t{8} * a.head_dim;
      Fetcher fetcher(a.ahead, (a.tokens + 15) / 16);
      for (int t = 0; t < a.tokens; t += 16) {
        fetcher.Step();
        const bool two = t + 8 < a.tokens;
        const K* low = reinterpret_cast<const K*>(a.k) + t / 8 * tile;
        const K* high = two ? low + tile : low;
        __m512 s[R];
#pragma GCC unroll 8
        for (int r = 0; r < R; ++r) s[r] = _mm512_setzero_ps();
#pragma GCC unroll 2
        for (int c = 0; c < a.head_dim; ++c) {
          const __m512 k = LoadTiles(low + c * 8, high + c * 8);
#pragma GCC unroll 8
          for (int r = 0; r < R; ++r) s[r] = _mm512_fmadd_ps(_mm512_set1_ps(a.q[r][c]), k, s[r]);
        }
        for (int r = 0; r < R; ++r) _mm512_mask_storeu_ps(a.s[r] + t, Lanes(two ? 16 : 8), s[r]);
      }
    }
  };
};

const uint16_t* Params(const KvBlock& b, const uint8_t* block, int group) {
  return reinterpret_cast<const uint16_t*>(block + b.params()) + static_cast<int64_t>(group) * b.n_per_group() * 2;
}

// A scale a channel: folded into the query once per group of tokens. Its kTerms terms are rows of one product.
template <int kBits, int kTerms>
struct Channels {
  template <int R>
  struct Rows {
    static void Run(const ScoreArgs& a) {
      const KvBlock& b = *a.block;
      const float unit = kBits == 4 ? 0.5f : 1.0f;
      const int64_t bytes = int64_t{a.head_dim} * kBits;  // of eight tokens' codes
      Int8Rows<kTerms * R> x;                             // row r, and R + r: what it leaves
      constexpr int V = kVectors<kTerms * R>;
      Fetcher fetcher(a.ahead, (a.tokens + 16 * V - 1) / (16 * V) * (a.head_dim / 8));
      for (int g = 0; g * b.group() < a.tokens; ++g) {
        const uint16_t *scales = Params(b, a.k, g), *centres = scales + b.n_per_group();
        alignas(64) float scale_of[kMaxAlong];
#pragma GCC unroll 1
        for (int c = 0; c < a.head_dim; c += 16) {
          _mm512_store_ps(scale_of + c, LoadHalf16(scales + c, Lanes(a.head_dim - c)));
        }
        for (int i = 0; i < a.fine.n; ++i) scale_of[a.fine.channel(i)] = 0;
        FloatRows<R, kMaxAlong> u;
        __m256 base[R];
#pragma GCC unroll 8
        for (int r = 0; r < R; ++r) base[r] = _mm256_setzero_ps();
#pragma GCC unroll 1
        for (int c = 0; c < a.head_dim; c += 16) {
          const __mmask16 lanes = Lanes(a.head_dim - c);
          const __m512 scale = _mm512_load_ps(scale_of + c), centre = LoadHalf16(centres + c, lanes);
#pragma GCC unroll 8
          for (int r = 0; r < R; ++r) {
            const __m512 q = _mm512_maskz_loadu_ps(lanes, a.q[r] + c);
            u.Put(c, r, _mm512_mul_ps(q, scale));
            base[r] = AddProduct(q, centre, base[r]);
          }
        }
        ToInt8<kBits, kTerms == 2>(&u, a.head_dim, 0, &x);
        if constexpr (kTerms == 2) ToInt8<kBits, false>(&u, a.head_dim, R, &x);
#pragma GCC unroll 8
        for (int r = 0; r < R; ++r) x.base[r] = LaneSum(base[r]);
#pragma GCC unroll 16
        for (int r = 0; r < kTerms * R; ++r) x.step[r] = unit * x.step[r];
        const int end = std::min(a.tokens, (g + 1) * b.group());
#pragma GCC unroll 1
        for (int t = g * b.group(); t < end; t += 16 * V) {
          const int n_eights = (end - t + 7) / 8;
          __m512i dots[V][kTerms * R];
          Dots<kBits>(Eights<V>(a.k + t / 8 * bytes, bytes, n_eights), a.head_dim, x, fetcher, dots);
          const __mmask16 lanes[2] = {LanesOfEights(n_eights), LanesOfEights(n_eights - 2)};
#pragma GCC unroll 8
          for (int r = 0; r < R; ++r) {
#pragma GCC unroll 2
            for (int v = 0; v < V; ++v) {
              __m512 s = _mm512_set1_ps(x.base[r]);
              s = _mm512_fmadd_ps(_mm512_cvtepi32_ps(dots[v][r]), _mm512_set1_ps(x.step[r]), s);
              if constexpr (kTerms == 2) {
                s = _mm512_fmadd_ps(_mm512_cvtepi32_ps(dots[v][R + r]), _mm512_set1_ps(x.step[R + r]), s);
              }
              _mm512_mask_storeu_ps(a.s[r] + t + 16 * v, lanes[v], s);
            }
          }
        }
      }
    }
  };
};

// Sixteen tokens of all rows stay in registers while the fine rows pass by.
template <int R>
struct Refine {
  static void Run(const RefineArgs& a) {
    constexpr int kAtOnce = 16;  // fine rows
    const __m128i low = _mm_set1_epi8(15);
    const int head_dim = a.block->head_dim();
    for (int first = 0; first < a.fine.n; first += kAtOnce) {
      const int n = std::min(kAtOnce, a.fine.n - first);
      float u[kAtOnce][R];
      // A 32-byte vector of the block has eight channels of eight tokens: four bytes a token.
      int64_t shifts[kAtOnce];
      const uint8_t *main[kAtOnce], *codes[kAtOnce];
      for (int i = 0; i < n; ++i) {
        const int c = a.fine.channel(first + i);
        const float scale = _mm_cvtss_f32(_mm_cvtph_ps(_mm_cvtsi32_si128(Params(*a.block, a.k, 0)[c])));
        for (int r = 0; r < R; ++r) u[i][r] = a.q[r][c] * scale;
        shifts[i] = c % 4 * 8 + c % 8 / 4 * 4;
        main[i] = a.k + c / 8 * 32;
        codes[i] = a.fine.codes + static_cast<size_t>(first + i) * a.fine.row_bytes;
      }
#pragma GCC unroll 1
      for (int t = 0; t < a.tokens; t += 16) {
        __m512 s[R];
#pragma GCC unroll 8
        for (int r = 0; r < R; ++r) s[r] = _mm512_load_ps(a.s[r] + t);
#pragma GCC unroll 1
        for (int i = 0; i < n; ++i) {
          const uint8_t* eight = main[i] + int64_t{t} / 2 * head_dim;
          const __m128i both = _mm_loadl_epi64(reinterpret_cast<const __m128i*>(codes[i] + t / 2));
          const __m128i second = _mm_and_si128(_mm_unpacklo_epi64(both, _mm_srli_epi16(both, 4)), low);
          const __m512i n_t =
              _mm512_and_si512(_mm512_srl_epi32(LoadPair(eight, eight + 4 * head_dim), _mm_cvtsi64_si128(shifts[i])),
                               _mm512_set1_epi32(15));
          const __m512i code = _mm512_or_si512(_mm512_slli_epi32(n_t, 4), _mm512_cvtepu8_epi32(second));
          const __m512 x = _mm512_fmsub_ps(_mm512_cvtepi32_ps(code), _mm512_set1_ps(0.0625f), _mm512_set1_ps(7.96875f));
#pragma GCC unroll 8
          for (int r = 0; r < R; ++r) s[r] = _mm512_fmadd_ps(_mm512_set1_ps(u[i][r]), x, s[r]);
        }
#pragma GCC unroll 8
        for (int r = 0; r < R; ++r) _mm512_store_ps(a.s[r] + t, s[r]);
      }
    }
  }
};

}  // namespace

void refine_avx512(const RefineArgs& a) {
  ByRows<Refine>(a.n_rows, a);
}

void score_f32_avx512(const ScoreArgs& a) {
  ByRows<Float<float>::Rows>(a.n_rows, a);
}
void score_f16_avx512(const ScoreArgs& a) {
  ByRows<Float<uint16_t>::Rows>(a.n_rows, a);
}
void score_int8_channel_avx512(const ScoreArgs& a) {
  ByRows<Channels<8, 2>::Rows>(a.n_rows, a);
}
void score_int4_channel_avx512(const ScoreArgs& a) {
  if (a.block->format().fine())
    ByRows<Channels<4, 1>::Rows>(a.n_rows, a);
  else
    ByRows<Channels<4, 2>::Rows>(a.n_rows, a);
}

}  // namespace kvart::avx512

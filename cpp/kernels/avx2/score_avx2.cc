// Scores of one page's keys: up to eight query rows share every key that is loaded.
#include <algorithm>

#include "kernels/avx2/attend_avx2.h"
#include "kernels/avx2/kv_int_inl.h"

namespace kvart::avx2 {
namespace {

inline __m256 Load8(const float* p) {
  return _mm256_loadu_ps(p);
}
inline __m256 Load8(const uint16_t* p) {
  return LoadHalf8(p);
}

template <class K>
struct Float {
  template <int R>
  struct Rows {
    static void Run(const ScoreArgs& a) {
      Fetcher fetcher(a.ahead, (a.tokens + 7) / 8);
      for (int t = 0; t < a.tokens; t += 8) {
        fetcher.Step();
        const K* keys = reinterpret_cast<const K*>(a.k) + static_cast<int64_t>(t) * a.head_dim;
        __m256 s[R];
#pragma GCC unroll 8
        for (int r = 0; r < R; ++r) s[r] = _mm256_setzero_ps();
        for (int c = 0; c < a.head_dim; ++c) {
          const __m256 k = Load8(keys + c * 8);
#pragma GCC unroll 8
          for (int r = 0; r < R; ++r) s[r] = _mm256_fmadd_ps(_mm256_broadcast_ss(a.q[r] + c), k, s[r]);
        }
        for (int r = 0; r < R; ++r) _mm256_store_ps(a.s[r] + t, s[r]);
      }
    }
  };
};

const uint16_t* Params(const KvBlock& b, const uint8_t* block, int group) {
  return reinterpret_cast<const uint16_t*>(block + b.params()) + static_cast<int64_t>(group) * b.n_per_group() * 2;
}

// A scale a channel: folded into the query once per group of tokens. kTerms: of the query.
template <int kBits, int kTerms>
struct Channels {
  template <int R>
  struct Rows {
    static void Run(const ScoreArgs& a) {
      const KvBlock& b = *a.block;
      const float unit = kBits == 4 ? 0.5f : 1.0f;
      const int bytes = a.head_dim * kBits;  // of eight tokens' codes
      Int8Vector queries[R], rests[kTerms == 2 ? R : 1];
      const Int8Vector *x[R], *y[R];
      Fetcher fetcher(a.ahead, (a.tokens + 7) / 8);
      for (int g = 0; g * b.group() < a.tokens; ++g) {
        const uint16_t *scales = Params(b, a.k, g), *centres = scales + b.n_per_group();
        alignas(32) float scale[kMaxAlong];
        for (int c = 0; c < a.head_dim; c += 8) _mm256_store_ps(scale + c, LoadHalf8(scales + c));
        for (int i = 0; i < a.fine.n; ++i) scale[a.fine.channel(i)] = 0;
        for (int r = 0; r < R; ++r) {
          alignas(32) float u[kMaxAlong];
          __m256 base = _mm256_setzero_ps();
          for (int c = 0; c < a.head_dim; c += 8) {
            const __m256 q = _mm256_loadu_ps(a.q[r] + c);
            _mm256_store_ps(u + c, _mm256_mul_ps(q, _mm256_load_ps(scale + c)));
            base = _mm256_fmadd_ps(q, LoadHalf8(centres + c), base);
          }
          ToInt8(u, a.head_dim, &queries[r]);
          if constexpr (kTerms == 2) {
            TakeAway(queries[r], a.head_dim, u);
            ToInt8(u, a.head_dim, &rests[r]);
            rests[r].step = unit * rests[r].step;
            y[r] = &rests[r];
          }
          queries[r].base = LaneSum(base);
          queries[r].step = unit * queries[r].step;
          x[r] = &queries[r];
        }
        const int end = std::min(a.tokens, (g + 1) * b.group());
        for (int t = g * b.group(); t < end; t += 8) {
          fetcher.Step();
          const uint8_t* codes = a.k + static_cast<int64_t>(t / 8) * bytes;
          __m256i dots[R];
          Dots<kBits, R>(codes, a.head_dim, x, dots);
#pragma GCC unroll 8
          for (int r = 0; r < R; ++r) {
            const __m256 s =
                _mm256_fmadd_ps(_mm256_cvtepi32_ps(dots[r]), _mm256_set1_ps(x[r]->step), _mm256_set1_ps(x[r]->base));
            _mm256_store_ps(a.s[r] + t, s);
          }
          if constexpr (kTerms == 1) continue;
          Dots<kBits, R>(codes, a.head_dim, y, dots);
#pragma GCC unroll 8
          for (int r = 0; r < R; ++r) {
            const __m256 s = _mm256_load_ps(a.s[r] + t);
            _mm256_store_ps(a.s[r] + t, _mm256_fmadd_ps(_mm256_cvtepi32_ps(dots[r]), _mm256_set1_ps(y[r]->step), s));
          }
        }
      }
    }
  };
};

// A scale a token: applied behind the dot of each group of channels.
template <int kBits>
struct Tokens {
  template <int R>
  struct Rows {
    static void Run(const ScoreArgs& a) {
      const KvBlock& b = *a.block;
      const float unit = kBits == 4 ? 0.5f : 1.0f;
      const int bytes = a.head_dim * kBits;
      const uint16_t* norms = reinterpret_cast<const uint16_t*>(a.k + b.bytes()) - b.tokens();
      for (int r = 0; r < R; ++r) std::fill(a.s[r], a.s[r] + (a.tokens + 7) / 8 * 8, 0.0f);
      Int8Vector queries[R];
      const Int8Vector* x[R];
      Fetcher fetcher(a.ahead, b.n_groups() * ((a.tokens + 7) / 8));
      for (int g = 0; g < b.n_groups(); ++g) {
        const uint16_t *scales = Params(b, a.k, g), *centres = scales + b.n_per_group();
        const int begin = g * b.group(), n = std::min(a.head_dim - begin, b.group());
        for (int r = 0; r < R; ++r) {
          __m256 base = _mm256_setzero_ps();
          for (int c = begin; c < begin + n; c += 8) base = _mm256_add_ps(base, _mm256_loadu_ps(a.q[r] + c));
          ToInt8(a.q[r] + begin, n, &queries[r]);
          queries[r].base = LaneSum(base);
          queries[r].step = unit * queries[r].step;
          x[r] = &queries[r];
        }
        for (int t = 0; t < a.tokens; t += 8) {
          fetcher.Step();
          __m256i dots[R];
          Dots<kBits, R>(a.k + static_cast<int64_t>(t / 8) * bytes + begin * kBits, n, x, dots);
          __m256 scale = LoadHalf8(scales + t), centre = LoadHalf8(centres + t);
          if (b.format().norm) {
            scale = _mm256_mul_ps(scale, LoadHalf8(norms + t));
            centre = _mm256_mul_ps(centre, LoadHalf8(norms + t));
          }
          for (int r = 0; r < R; ++r) {
            __m256 s = _mm256_load_ps(a.s[r] + t);
            s = _mm256_fmadd_ps(_mm256_cvtepi32_ps(dots[r]), _mm256_mul_ps(_mm256_set1_ps(x[r]->step), scale), s);
            s = _mm256_fmadd_ps(_mm256_set1_ps(x[r]->base), centre, s);
            _mm256_store_ps(a.s[r] + t, s);
          }
        }
      }
    }
  };
};

// Eight tokens of all rows stay in registers while the fine rows pass by.
template <int R>
struct Refine {
  static void Run(const RefineArgs& a) {
    constexpr int kAtOnce = 16;  // fine rows
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
      for (int t = 0; t < a.tokens; t += 8) {  // eights of tokens in turn have the low and the high halves of codes
        __m256 s[R];
#pragma GCC unroll 8
        for (int r = 0; r < R; ++r) s[r] = _mm256_load_ps(a.s[r] + t);
#pragma GCC unroll 1
        for (int i = 0; i < n; ++i) {
          __m128i second = _mm_loadl_epi64(reinterpret_cast<const __m128i*>(codes[i] + t / 16 * 8));
          second = _mm_and_si128(_mm_srl_epi16(second, _mm_cvtsi32_si128(t % 16 / 2)), _mm_set1_epi8(15));
          const __m256i main_t = LoadInt(main[i] + int64_t{t} / 2 * head_dim);
          const __m256i n_t =
              _mm256_and_si256(_mm256_srl_epi32(main_t, _mm_cvtsi64_si128(shifts[i])), _mm256_set1_epi32(15));
          const __m256i code = _mm256_or_si256(_mm256_slli_epi32(n_t, 4), _mm256_cvtepu8_epi32(second));
          const __m256 x = _mm256_fmsub_ps(_mm256_cvtepi32_ps(code), _mm256_set1_ps(0.0625f), _mm256_set1_ps(7.96875f));
#pragma GCC unroll 8
          for (int r = 0; r < R; ++r) s[r] = _mm256_fmadd_ps(_mm256_set1_ps(u[i][r]), x, s[r]);
        }
#pragma GCC unroll 8
        for (int r = 0; r < R; ++r) _mm256_store_ps(a.s[r] + t, s[r]);
      }
    }
  }
};

}  // namespace

void refine_avx2(const RefineArgs& a) {
  ByRows<Refine>(a.n_rows, a);
}

void score_f32_avx2(const ScoreArgs& a) {
  ByRows<Float<float>::Rows>(a.n_rows, a);
}
void score_f16_avx2(const ScoreArgs& a) {
  ByRows<Float<uint16_t>::Rows>(a.n_rows, a);
}
void score_int8_channel_avx2(const ScoreArgs& a) {
  ByRows<Channels<8, 2>::Rows>(a.n_rows, a);
}
void score_int4_channel_avx2(const ScoreArgs& a) {
  if (a.block->format().fine())
    ByRows<Channels<4, 1>::Rows>(a.n_rows, a);
  else
    ByRows<Channels<4, 2>::Rows>(a.n_rows, a);
}
void score_int8_token_avx2(const ScoreArgs& a) {
  ByRows<Tokens<8>::Rows>(a.n_rows, a);
}
void score_int4_token_avx2(const ScoreArgs& a) {
  ByRows<Tokens<4>::Rows>(a.n_rows, a);
}

const ScoreKernel kScore[] = {
    {"score_f32_avx2", KvCode::kF32, KvAxis::kChannel, score_f32_avx2},
    {"score_f16_avx2", KvCode::kF16, KvAxis::kChannel, score_f16_avx2},
    {"score_int8_channel_avx2", KvCode::kInt8, KvAxis::kChannel, score_int8_channel_avx2},
    {"score_int4_channel_avx2", KvCode::kInt4, KvAxis::kChannel, score_int4_channel_avx2},
    {"score_int8_token_avx2", KvCode::kInt8, KvAxis::kToken, score_int8_token_avx2},
    {"score_int4_token_avx2", KvCode::kInt4, KvAxis::kToken, score_int4_token_avx2},
};
const size_t kScoreCount = sizeof kScore / sizeof kScore[0];

}  // namespace kvart::avx2

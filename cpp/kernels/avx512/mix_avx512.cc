// Softmax over one page's scores, and the mix of its values: sixteen channels at a time, up to eight query rows share
// every value that is loaded.
#include <algorithm>
#include <limits>

#include "kernels/avx512/kernels_avx512.h"
#include "kernels/avx512/kv_int_inl.h"

namespace kvart::avx512 {
namespace {

inline __m512 Load16(const float* p, __mmask16 lanes) {
  return _mm512_maskz_loadu_ps(lanes, p);
}
inline __m512 Load16(const uint16_t* p, __mmask16 lanes) {
  return LoadHalf16(p, lanes);
}

template <class V>
struct Float {
  template <int R>
  struct Rows {
    static void Run(const MixArgs& a) {
      const V* values = reinterpret_cast<const V*>(a.v);
      int common = kMaxPageTokens;  // tokens that all rows see
      for (int r = 0; r < R; ++r) common = std::min(common, a.visible[r]);
      Fetcher fetcher(a.ahead, (a.head_dim + 15) / 16);
      for (int d = 0; d < a.head_dim; d += 16) {
        fetcher.Step();
        const __mmask16 lanes = Lanes(a.head_dim - d);
        __m512 o[R];
#pragma GCC unroll 8
        for (int r = 0; r < R; ++r) o[r] = _mm512_setzero_ps();
        for (int t = 0; t < common; ++t) {
          const __m512 v = Load16(values + static_cast<int64_t>(t) * a.head_dim + d, lanes);
#pragma GCC unroll 8
          for (int r = 0; r < R; ++r) o[r] = _mm512_fmadd_ps(_mm512_set1_ps(a.p[r][t]), v, o[r]);
        }
        for (int r = 0; r < R; ++r) {
          for (int t = common; t < a.visible[r]; ++t) {
            const __m512 v = Load16(values + static_cast<int64_t>(t) * a.head_dim + d, lanes);
            o[r] = _mm512_fmadd_ps(_mm512_set1_ps(a.p[r][t]), v, o[r]);
          }
          _mm512_mask_storeu_ps(a.o[r] + d, lanes, o[r]);
        }
      }
    }
  };
};

// A scale a token: folded into the weights once per group of channels.
template <int kBits>
struct Tokens {
  template <int R>
  struct Rows {
    static void Run(const MixArgs& a) {
      const KvBlock& b = *a.block;
      const float unit = kBits == 4 ? 0.5f : 1.0f;
      const int64_t bytes = int64_t{b.tokens()} * kBits;  // of eight channels' codes
      constexpr int V = kVectors<R>;
      Int8Rows<R> x;
      Fetcher fetcher(a.ahead, (a.head_dim + 16 * V - 1) / (16 * V) * (b.tokens() / 8));
      for (int g = 0; g < b.n_groups(); ++g) {
        const uint16_t* scales =
            reinterpret_cast<const uint16_t*>(a.v + b.params()) + static_cast<int64_t>(g) * b.tokens() * 2;
        const uint16_t* centres = scales + b.tokens();
        FloatRows<R, kMaxPageTokens> w;
        __m256 base[R];
#pragma GCC unroll 8
        for (int r = 0; r < R; ++r) base[r] = _mm256_setzero_ps();
#pragma GCC unroll 1
        for (int t = 0; t < b.tokens(); t += 16) {
          const __mmask16 lanes = Lanes(b.tokens() - t);
          const __m512 scale = LoadHalf16(scales + t, lanes), centre = LoadHalf16(centres + t, lanes);
#pragma GCC unroll 8
          for (int r = 0; r < R; ++r) {
            const __m512 p = _mm512_maskz_loadu_ps(lanes, a.p[r] + t);
            w.Put(t, r, _mm512_mul_ps(p, scale));
            base[r] = AddProduct(p, centre, base[r]);
          }
        }
        ToInt8<kBits, false>(&w, b.tokens(), 0, &x);
#pragma GCC unroll 8
        for (int r = 0; r < R; ++r) {
          x.base[r] = LaneSum(base[r]);
          x.step[r] = unit * x.step[r];
        }
        const int end = std::min(a.head_dim, (g + 1) * b.group());
        for (int d = g * b.group(); d < end; d += 16 * V) {
          const int n_eights = (end - d + 7) / 8;
          __m512i dots[V][R];
          Dots<kBits>(Eights<V>(a.v + d / 8 * bytes, bytes, n_eights), b.tokens(), x, fetcher, dots);
          const __mmask16 lanes[2] = {LanesOfEights(n_eights), LanesOfEights(n_eights - 2)};
#pragma GCC unroll 8
          for (int r = 0; r < R; ++r) {
#pragma GCC unroll 2
            for (int v = 0; v < V; ++v) {
              const __m512 o =
                  _mm512_fmadd_ps(_mm512_cvtepi32_ps(dots[v][r]), _mm512_set1_ps(x.step[r]), _mm512_set1_ps(x.base[r]));
              _mm512_mask_storeu_ps(a.o[r] + d + 16 * v, lanes[v], o);
            }
          }
        }
      }
    }
  };
};

// All rows go through each step together: their chains overlap.
template <int R>
struct Softmax {
  static void Run(const SoftmaxArgs& a) {
    int most = 0, least = kMaxPageTokens;
#pragma GCC unroll 8
    for (int r = 0; r < R; ++r) {
      most = std::max<int>(most, a.visible[r]);
      least = std::min<int>(least, a.visible[r]);
    }
    const auto all_seen = [&](int t) { return t >= a.first && t + 16 <= least; };
    const auto seen = [&](int t, int r) {  // lanes with first <= t < visible
      const __mmask16 before = t >= a.first ? static_cast<__mmask16>(0) : Lanes(a.first - t);
      return static_cast<__mmask16>(Lanes(std::max(0, a.visible[r] - t)) & ~before);
    };
    __m512 top[R];
    __m256 sum[R];
#pragma GCC unroll 8
    for (int r = 0; r < R; ++r) {
      top[r] = _mm512_set1_ps(-std::numeric_limits<float>::infinity());
      sum[r] = _mm256_setzero_ps();
    }
#pragma GCC unroll 1
    for (int t = 0; t < most; t += 16) {
      const bool all = all_seen(t);
#pragma GCC unroll 8
      for (int r = 0; r < R; ++r) {
        const __mmask16 lanes = all ? static_cast<__mmask16>(0xffff) : seen(t, r);
        top[r] = _mm512_mask_max_ps(top[r], lanes, _mm512_load_ps(a.s[r] + t), top[r]);
      }
    }
#pragma GCC unroll 8
    for (int r = 0; r < R; ++r) {
      a.m[r] = _mm512_reduce_max_ps(top[r]);
      top[r] = _mm512_set1_ps(a.m[r]);
    }
#pragma GCC unroll 1
    for (int t = 0; t < most; t += 16) {
      const bool all = all_seen(t);
#pragma GCC unroll 8
      for (int r = 0; r < R; ++r) {
        float* s = a.s[r] + t;
        __m512 e = Exp2<true>(_mm512_sub_ps(_mm512_load_ps(s), top[r]));
        if (!all) e = _mm512_maskz_mov_ps(seen(t, r), e);
        _mm512_store_ps(s, e);
        sum[r] = _mm256_add_ps(sum[r], _mm512_castps512_ps256(e));  // eight lanes, as everywhere
        sum[r] = _mm256_add_ps(sum[r], _mm512_extractf32x8_ps(e, 1));
      }
    }
#pragma GCC unroll 8
    for (int r = 0; r < R; ++r) a.l[r] = LaneSum(sum[r]);
    for (int r = 0; r < R; ++r) {
      for (int t = (most + 15) / 16 * 16; t < a.tokens; t += 16) _mm512_store_ps(a.s[r] + t, _mm512_setzero_ps());
    }
  }
};

}  // namespace

void softmax_avx512(const SoftmaxArgs& a) {
  ByRows<Softmax>(a.n_rows, a);
}

void mix_f32_avx512(const MixArgs& a) {
  ByRows<Float<float>::Rows>(a.n_rows, a);
}
void mix_f16_avx512(const MixArgs& a) {
  ByRows<Float<uint16_t>::Rows>(a.n_rows, a);
}
void mix_int8_avx512(const MixArgs& a) {
  ByRows<Tokens<8>::Rows>(a.n_rows, a);
}
void mix_int4_avx512(const MixArgs& a) {
  ByRows<Tokens<4>::Rows>(a.n_rows, a);
}

}  // namespace kvart::avx512

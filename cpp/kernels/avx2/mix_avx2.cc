// Softmax over one page's scores, and the mix of its values: up to eight query rows share every value that is loaded.
#include <algorithm>
#include <limits>

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

template <class V>
struct Float {
  template <int R>
  struct Rows {
    static void Run(const MixArgs& a) {
      const V* values = reinterpret_cast<const V*>(a.v);
      int common = kMaxPageTokens;  // tokens that all rows see
      for (int r = 0; r < R; ++r) common = std::min(common, a.visible[r]);
      Fetcher fetcher(a.ahead, a.head_dim / 8);
      for (int d = 0; d < a.head_dim; d += 8) {
        fetcher.Step();
        __m256 o[R];
#pragma GCC unroll 8
        for (int r = 0; r < R; ++r) o[r] = _mm256_setzero_ps();
        for (int t = 0; t < common; ++t) {
          const __m256 v = Load8(values + static_cast<int64_t>(t) * a.head_dim + d);
#pragma GCC unroll 8
          for (int r = 0; r < R; ++r) o[r] = _mm256_fmadd_ps(_mm256_broadcast_ss(a.p[r] + t), v, o[r]);
        }
        for (int r = 0; r < R; ++r) {
          for (int t = common; t < a.visible[r]; ++t) {
            const __m256 v = Load8(values + static_cast<int64_t>(t) * a.head_dim + d);
            o[r] = _mm256_fmadd_ps(_mm256_broadcast_ss(a.p[r] + t), v, o[r]);
          }
          _mm256_storeu_ps(a.o[r] + d, o[r]);
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
      const int bytes = b.tokens() * kBits;  // of eight channels' codes
      Int8Vector weights[R];
      const Int8Vector* x[R];
      Fetcher fetcher(a.ahead, a.head_dim / 8);
      for (int g = 0; g < b.n_groups(); ++g) {
        const uint16_t* scales =
            reinterpret_cast<const uint16_t*>(a.v + b.params()) + static_cast<int64_t>(g) * b.tokens() * 2;
        const uint16_t* centres = scales + b.tokens();
        for (int r = 0; r < R; ++r) {
          alignas(32) float w[kMaxPageTokens];
          __m256 base = _mm256_setzero_ps();
          for (int t = 0; t < b.tokens(); t += 8) {
            const __m256 p = _mm256_load_ps(a.p[r] + t);
            _mm256_store_ps(w + t, _mm256_mul_ps(p, LoadHalf8(scales + t)));
            base = _mm256_fmadd_ps(p, LoadHalf8(centres + t), base);
          }
          ToInt8(w, b.tokens(), &weights[r]);
          weights[r].base = LaneSum(base);
          weights[r].step = unit * weights[r].step;
          x[r] = &weights[r];
        }
        const int end = std::min(a.head_dim, (g + 1) * b.group());
        for (int d = g * b.group(); d < end; d += 8) {
          fetcher.Step();
          __m256i dots[R];
          Dots<kBits, R>(a.v + static_cast<int64_t>(d / 8) * bytes, b.tokens(), x, dots);
#pragma GCC unroll 8
          for (int r = 0; r < R; ++r) {
            const __m256 o =
                _mm256_fmadd_ps(_mm256_cvtepi32_ps(dots[r]), _mm256_set1_ps(x[r]->step), _mm256_set1_ps(x[r]->base));
            _mm256_storeu_ps(a.o[r] + d, o);
          }
        }
      }
    }
  };
};

// Rows that go through each step together: their chains overlap. a: from their first one on.
template <int R>
struct Softmax {
  static void Run(const SoftmaxArgs& a) {
    const __m256 none = _mm256_set1_ps(-std::numeric_limits<float>::infinity());
    int most = 0, least = kMaxPageTokens;
    for (int r = 0; r < R; ++r) {
      most = std::max<int>(most, a.visible[r]);
      least = std::min<int>(least, a.visible[r]);
    }
    const auto all_seen = [&](int t) { return t >= a.first && t + 8 <= least; };
    const auto seen = [&](int t, int r) {  // lanes with first <= t < visible
      const __m256i at = _mm256_add_epi32(_mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7), _mm256_set1_epi32(t));
      return _mm256_castsi256_ps(_mm256_and_si256(_mm256_cmpgt_epi32(at, _mm256_set1_epi32(a.first - 1)),
                                                  _mm256_cmpgt_epi32(_mm256_set1_epi32(a.visible[r]), at)));
    };
    __m256 top[R], sum[R];
#pragma GCC unroll 4
    for (int r = 0; r < R; ++r) {
      top[r] = none;
      sum[r] = _mm256_setzero_ps();
    }
#pragma GCC unroll 1
    for (int t = 0; t < most; t += 8) {
      const bool all = all_seen(t);
#pragma GCC unroll 4
      for (int r = 0; r < R; ++r) {
        __m256 s = _mm256_load_ps(a.s[r] + t);
        if (!all) s = _mm256_blendv_ps(none, s, seen(t, r));
        top[r] = _mm256_max_ps(s, top[r]);
      }
    }
#pragma GCC unroll 4
    for (int r = 0; r < R; ++r) {
      a.m[r] = LaneMax(top[r]);
      top[r] = _mm256_set1_ps(a.m[r]);
    }
#pragma GCC unroll 1
    for (int t = 0; t < most; t += 8) {
      const bool all = all_seen(t);
#pragma GCC unroll 4
      for (int r = 0; r < R; ++r) {
        float* s = a.s[r] + t;
        __m256 e = Exp2<true>(_mm256_sub_ps(_mm256_load_ps(s), top[r]));
        if (!all) e = _mm256_and_ps(e, seen(t, r));
        _mm256_store_ps(s, e);
        sum[r] = _mm256_add_ps(sum[r], e);
      }
    }
    for (int r = 0; r < R; ++r) {
      a.l[r] = LaneSum(sum[r]);
      for (int t = (most + 7) / 8 * 8; t < a.tokens; t += 8) _mm256_store_ps(a.s[r] + t, _mm256_setzero_ps());
    }
  }
};

}  // namespace

void softmax_avx2(const SoftmaxArgs& a) {
  constexpr int kTogether = 4;  // more would not fit into the registers
  for (int r = 0; r < a.n_rows; r += kTogether) {
    SoftmaxArgs some = a;
    some.visible += r;
    some.s += r;
    some.m += r;
    some.l += r;
    ByRows<Softmax>(std::min(kTogether, a.n_rows - r), some);
  }
}

void mix_f32_avx2(const MixArgs& a) {
  ByRows<Float<float>::Rows>(a.n_rows, a);
}
void mix_f16_avx2(const MixArgs& a) {
  ByRows<Float<uint16_t>::Rows>(a.n_rows, a);
}
void mix_int8_avx2(const MixArgs& a) {
  ByRows<Tokens<8>::Rows>(a.n_rows, a);
}
void mix_int4_avx2(const MixArgs& a) {
  ByRows<Tokens<4>::Rows>(a.n_rows, a);
}

const MixKernel kMix[] = {
    {"mix_f32_avx2", KvCode::kF32, mix_f32_avx2},
    {"mix_f16_avx2", KvCode::kF16, mix_f16_avx2},
    {"mix_int8_avx2", KvCode::kInt8, mix_int8_avx2},
    {"mix_int4_avx2", KvCode::kInt4, mix_int4_avx2},
};
const size_t kMixCount = sizeof kMix / sizeof kMix[0];

}  // namespace kvart::avx2

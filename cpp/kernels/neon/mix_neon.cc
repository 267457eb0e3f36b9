// Softmax over one page's scores, and the mix of its values: up to eight query rows share every value that is loaded.
#include <algorithm>
#include <limits>

#include "kernels/neon/kernels_neon.h"
#include "kernels/neon/kv_int_inl.h"

namespace kvart::neon {
namespace {

constexpr int32_t kLanes[8] = {0, 1, 2, 3, 4, 5, 6, 7};

template <class V>
struct Float {
  template <int R>
  struct Rows {
    // What a row does not see may be garbage, so the common part of all rows comes first and then each row's own rest.
    static void Run(const MixArgs& a) {
      int common = kMaxPageTokens;
      for (int r = 0; r < R; ++r) common = std::min(common, a.visible[r]);
      Fetcher fetcher(a.ahead, a.head_dim / 8);
      for (int d = 0; d < a.head_dim; d += 8) {
        fetcher.Step();
        const V* values = reinterpret_cast<const V*>(a.v) + d;
        F8 o[R];
        KVART_UNROLL
        for (int r = 0; r < R; ++r) o[r] = Zero8();
        for (int t = 0; t + 4 <= common; t += 4) {
          float32x4_t p[R];
          KVART_UNROLL
          for (int r = 0; r < R; ++r) p[r] = vld1q_f32(a.p[r] + t);
#define KVART_TOKEN(lane)                                   \
  {                                                         \
    const F8 v = Load8(values + (t + lane) * a.head_dim);   \
    KVART_UNROLL for (int r = 0; r < R; ++r) {              \
      o[r].lo = vfmaq_laneq_f32(o[r].lo, v.lo, p[r], lane); \
      o[r].hi = vfmaq_laneq_f32(o[r].hi, v.hi, p[r], lane); \
    }                                                       \
  }
          KVART_TOKEN(0)
          KVART_TOKEN(1)
          KVART_TOKEN(2)
          KVART_TOKEN(3)
#undef KVART_TOKEN
        }
        KVART_UNROLL
        for (int r = 0; r < R; ++r) {
          for (int t = common / 4 * 4; t < a.visible[r]; ++t) {
            const F8 v = Load8(values + t * a.head_dim);
            o[r] = {vfmaq_n_f32(o[r].lo, v.lo, a.p[r][t]), vfmaq_n_f32(o[r].hi, v.hi, a.p[r][t])};
          }
          Store8(a.o[r] + d, o[r]);
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
      Int8Vector x[R];
      Fetcher fetcher(a.ahead, a.head_dim / 8);
      for (int g = 0; g < b.n_groups(); ++g) {
        const uint16_t* scales =
            reinterpret_cast<const uint16_t*>(a.v + b.params()) + static_cast<int64_t>(g) * b.tokens() * 2;
        const uint16_t* centres = scales + b.tokens();
        for (int r = 0; r < R; ++r) {
          float w[kMaxPageTokens];
          F8 base = Zero8();
          for (int t = 0; t < b.tokens(); t += 8) {
            const F8 p = Load8(a.p[r] + t), scale = Load8(scales + t), centre = Load8(centres + t);
            Store8(w + t, {vmulq_f32(p.lo, scale.lo), vmulq_f32(p.hi, scale.hi)});
            base = {vfmaq_f32(base.lo, p.lo, centre.lo), vfmaq_f32(base.hi, p.hi, centre.hi)};
          }
          ToInt8(w, b.tokens(), &x[r]);
          x[r].base = LaneSum(base);
          x[r].step = unit * x[r].step;
        }
        const int end = std::min(a.head_dim, (g + 1) * b.group());
        for (int d = g * b.group(); d < end; d += 8) {
          fetcher.Step();
          F8 dots[R];
          Dots<kBits, R>(a.v + static_cast<int64_t>(d / 8) * bytes, b.tokens(), x, dots);
          KVART_UNROLL
          for (int r = 0; r < R; ++r) {
            const float32x4_t base = vdupq_n_f32(x[r].base);
            Store8(a.o[r] + d, {vfmaq_n_f32(base, dots[r].lo, x[r].step), vfmaq_n_f32(base, dots[r].hi, x[r].step)});
          }
        }
      }
    }
  };
};

}  // namespace

void softmax_neon(const SoftmaxArgs& a) {
  const float32x4_t none = vdupq_n_f32(-std::numeric_limits<float>::infinity());
  const int32x4_t first = vdupq_n_s32(a.first);
  for (int r = 0; r < a.n_rows; ++r) {
    float* s = a.s[r];
    const int32x4_t visible = vdupq_n_s32(a.visible[r]);
    const auto seen = [&](int t, int half) {  // lanes with a.first <= t < visible
      const int32x4_t at = vaddq_s32(vld1q_s32(kLanes + half), vdupq_n_s32(t));
      return vandq_u32(vcgeq_s32(at, first), vcltq_s32(at, visible));
    };
    F8 top = {none, none};
    for (int t = 0; t < a.visible[r]; t += 8) {
      const F8 x = Load8(s + t);
      top = {Larger(vbslq_f32(seen(t, 0), x.lo, none), top.lo), Larger(vbslq_f32(seen(t, 4), x.hi, none), top.hi)};
    }
    const float m = vmaxvq_f32(Larger(top.lo, top.hi));  // no NaN got in
    const auto weight = [m](float32x4_t x, uint32x4_t mask) {
      return vreinterpretq_f32_u32(vandq_u32(vreinterpretq_u32_f32(Exp2(vsubq_f32(x, vdupq_n_f32(m)))), mask));
    };
    F8 sum = Zero8();
    int t = 0;
    for (; t < a.visible[r]; t += 8) {
      const F8 x = Load8(s + t), e = {weight(x.lo, seen(t, 0)), weight(x.hi, seen(t, 4))};
      Store8(s + t, e);
      sum = {vaddq_f32(sum.lo, e.lo), vaddq_f32(sum.hi, e.hi)};
    }
    for (; t < a.tokens; t += 8) Store8(s + t, Zero8());
    a.m[r] = m;
    a.l[r] = LaneSum(sum);
  }
}

void mix_f32_neon(const MixArgs& a) {
  ByRows<Float<float>::Rows>(a.n_rows, a);
}
void mix_f16_neon(const MixArgs& a) {
  ByRows<Float<uint16_t>::Rows>(a.n_rows, a);
}
void mix_int8_neon(const MixArgs& a) {
  ByRows<Tokens<8>::Rows>(a.n_rows, a);
}
void mix_int4_neon(const MixArgs& a) {
  ByRows<Tokens<4>::Rows>(a.n_rows, a);
}

}  // namespace kvart::neon

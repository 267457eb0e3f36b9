// Scores of one page's keys: up to eight query rows share every key that is loaded.
#include <algorithm>

#include "kernels/neon/kernels_neon.h"
#include "kernels/neon/kv_int_inl.h"

namespace kvart::neon {
namespace {

template <class K>
struct Float {
  template <int R>
  struct Rows {
    static void Run(const ScoreArgs& a) {
      const K* keys = reinterpret_cast<const K*>(a.k);
      Fetcher fetcher(a.ahead, (a.tokens + 7) / 8);
      for (int t = 0; t < a.tokens; t += 8, keys += 8 * a.head_dim) {
        fetcher.Step();
        F8 s[R];
        KVART_UNROLL
        for (int r = 0; r < R; ++r) s[r] = Zero8();
        for (int c = 0; c < a.head_dim; c += 4) {
          float32x4_t q[R];
          KVART_UNROLL
          for (int r = 0; r < R; ++r) q[r] = vld1q_f32(a.q[r] + c);
#define KVART_CHANNEL(lane)                                 \
  {                                                         \
    const F8 k = Load8(keys + (c + lane) * 8);              \
    KVART_UNROLL for (int r = 0; r < R; ++r) {              \
      s[r].lo = vfmaq_laneq_f32(s[r].lo, k.lo, q[r], lane); \
      s[r].hi = vfmaq_laneq_f32(s[r].hi, k.hi, q[r], lane); \
    }                                                       \
  }
          KVART_CHANNEL(0)
          KVART_CHANNEL(1)
          KVART_CHANNEL(2)
          KVART_CHANNEL(3)
#undef KVART_CHANNEL
        }
        KVART_UNROLL
        for (int r = 0; r < R; ++r) Store8(a.s[r] + t, s[r]);
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
      Int8Vector x[R], y[kTerms == 2 ? R : 1];
      Fetcher fetcher(a.ahead, (a.tokens + 7) / 8);
      for (int g = 0; g * b.group() < a.tokens; ++g) {
        const uint16_t *scales = Params(b, a.k, g), *centres = scales + b.n_per_group();
        float scale_of[kMaxAlong];
        for (int c = 0; c < a.head_dim; c += 8) Store8(scale_of + c, Load8(scales + c));
        for (int i = 0; i < a.fine.n; ++i) scale_of[a.fine.channel(i)] = 0;
        for (int r = 0; r < R; ++r) {
          float u[kMaxAlong];
          F8 base = Zero8();
          for (int c = 0; c < a.head_dim; c += 8) {
            const F8 q = Load8(a.q[r] + c), scale = Load8(scale_of + c), centre = Load8(centres + c);
            Store8(u + c, {vmulq_f32(q.lo, scale.lo), vmulq_f32(q.hi, scale.hi)});
            base = {vfmaq_f32(base.lo, q.lo, centre.lo), vfmaq_f32(base.hi, q.hi, centre.hi)};
          }
          ToInt8(u, a.head_dim, &x[r]);
          if constexpr (kTerms == 2) {
            TakeAway(x[r], a.head_dim, u);
            ToInt8(u, a.head_dim, &y[r]);
            y[r].step = unit * y[r].step;
          }
          x[r].base = LaneSum(base);
          x[r].step = unit * x[r].step;
        }
        const int end = std::min(a.tokens, (g + 1) * b.group());
        for (int t = g * b.group(); t < end; t += 8) {
          fetcher.Step();
          const uint8_t* codes = a.k + static_cast<int64_t>(t / 8) * bytes;
          F8 dots[R], rest[R];
          Dots<kBits, R>(codes, a.head_dim, x, dots);
          if constexpr (kTerms == 2) Dots<kBits, R>(codes, a.head_dim, y, rest);
          KVART_UNROLL
          for (int r = 0; r < R; ++r) {
            const float32x4_t base = vdupq_n_f32(x[r].base);
            F8 s = {vfmaq_n_f32(base, dots[r].lo, x[r].step), vfmaq_n_f32(base, dots[r].hi, x[r].step)};
            if constexpr (kTerms == 2) {
              s = {vfmaq_n_f32(s.lo, rest[r].lo, y[r].step), vfmaq_n_f32(s.hi, rest[r].hi, y[r].step)};
            }
            Store8(a.s[r] + t, s);
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
      Int8Vector x[R];
      Fetcher fetcher(a.ahead, b.n_groups() * ((a.tokens + 7) / 8));
      for (int g = 0; g < b.n_groups(); ++g) {
        const uint16_t *scales = Params(b, a.k, g), *centres = scales + b.n_per_group();
        const int begin = g * b.group(), n = std::min(a.head_dim - begin, b.group());
        for (int r = 0; r < R; ++r) {
          F8 base = Zero8();
          for (int c = begin; c < begin + n; c += 8) {
            const F8 q = Load8(a.q[r] + c);
            base = {vaddq_f32(base.lo, q.lo), vaddq_f32(base.hi, q.hi)};
          }
          ToInt8(a.q[r] + begin, n, &x[r]);
          x[r].base = LaneSum(base);
          x[r].step = unit * x[r].step;
        }
        for (int t = 0; t < a.tokens; t += 8) {
          fetcher.Step();
          F8 dots[R];
          Dots<kBits, R>(a.k + static_cast<int64_t>(t / 8) * bytes + begin * kBits, n, x, dots);
          F8 scale = Load8(scales + t), centre = Load8(centres + t);
          if (b.format().norm) {
            const F8 norm = Load8(norms + t);
            scale = {vmulq_f32(scale.lo, norm.lo), vmulq_f32(scale.hi, norm.hi)};
            centre = {vmulq_f32(centre.lo, norm.lo), vmulq_f32(centre.hi, norm.hi)};
          }
          KVART_UNROLL
          for (int r = 0; r < R; ++r) {
            F8 s = Load8(a.s[r] + t);
            s.lo = vfmaq_f32(s.lo, dots[r].lo, vmulq_n_f32(scale.lo, x[r].step));
            s.hi = vfmaq_f32(s.hi, dots[r].hi, vmulq_n_f32(scale.hi, x[r].step));
            Store8(a.s[r] + t, {vfmaq_n_f32(s.lo, centre.lo, x[r].base), vfmaq_n_f32(s.hi, centre.hi, x[r].base)});
          }
        }
      }
    }
  };
};

}  // namespace

void refine_neon(const RefineArgs& a) {
  const int head_dim = a.block->head_dim();
  for (int i = 0; i < a.fine.n; ++i) {
    const int c = a.fine.channel(i);
    const float scale = vgetq_lane_f32(vcvt_f32_f16(vreinterpret_f16_u16(vdup_n_u16(Params(*a.block, a.k, 0)[c]))), 0);
    float u[kMaxAttendRows];
    for (int r = 0; r < a.n_rows; ++r) u[r] = a.q[r][c] * scale;
    // A 32-byte vector of the block has eight channels of eight tokens: four bytes a token.
    const int32x4_t shift = vdupq_n_s32(-(c % 4 * 8 + c % 8 / 4 * 4));
    const auto four = [&](const uint8_t* main, uint16x4_t second) {
      const uint32x4_t n = vandq_u32(vshlq_u32(vreinterpretq_u32_u8(vld1q_u8(main)), shift), vdupq_n_u32(15));
      const float32x4_t code = vcvtq_f32_u32(vorrq_u32(vshlq_n_u32(n, 4), vmovl_u16(second)));
      return vfmaq_n_f32(vdupq_n_f32(-7.96875f), code, 0.0625f);
    };
    const auto values = [&](const uint8_t* main, uint8x8_t second) -> F8 {
      const uint16x8_t wide = vmovl_u8(second);
      return {four(main, vget_low_u16(wide)), four(main + 16, vget_high_u16(wide))};
    };
    const uint8_t *main = a.k + c / 8 * 32, *codes = a.fine.codes + static_cast<size_t>(i) * a.fine.row_bytes;
    for (int t = 0; t < a.tokens; t += 16, main += 8 * head_dim, codes += 8) {
      const uint8x8_t second = vld1_u8(codes);
      const F8 x = values(main, vand_u8(second, vdup_n_u8(15)));
      const F8 y = values(main + 4 * head_dim, vshr_n_u8(second, 4));
      for (int r = 0; r < a.n_rows; ++r) {
        const F8 s = Load8(a.s[r] + t), z = Load8(a.s[r] + t + 8);
        Store8(a.s[r] + t, {vfmaq_n_f32(s.lo, x.lo, u[r]), vfmaq_n_f32(s.hi, x.hi, u[r])});
        Store8(a.s[r] + t + 8, {vfmaq_n_f32(z.lo, y.lo, u[r]), vfmaq_n_f32(z.hi, y.hi, u[r])});
      }
    }
  }
}

void score_f32_neon(const ScoreArgs& a) {
  ByRows<Float<float>::Rows>(a.n_rows, a);
}
void score_f16_neon(const ScoreArgs& a) {
  ByRows<Float<uint16_t>::Rows>(a.n_rows, a);
}
void score_int8_channel_neon(const ScoreArgs& a) {
  ByRows<Channels<8, 2>::Rows>(a.n_rows, a);
}
void score_int4_channel_neon(const ScoreArgs& a) {
  if (a.block->format().fine())
    ByRows<Channels<4, 1>::Rows>(a.n_rows, a);
  else
    ByRows<Channels<4, 2>::Rows>(a.n_rows, a);
}
void score_int8_token_neon(const ScoreArgs& a) {
  ByRows<Tokens<8>::Rows>(a.n_rows, a);
}
void score_int4_token_neon(const ScoreArgs& a) {
  ByRows<Tokens<4>::Rows>(a.n_rows, a);
}

}  // namespace kvart::neon

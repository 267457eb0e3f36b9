// One page's share of attention. Up to four query rows walk the page together, so that a key or value is read and
// widened once for all of them; each row's sums run in the order of kernels.h whoever walks with it.
#include <algorithm>
#include <limits>

#include "kernels/neon/kernels_neon.h"
#include "kernels/neon/neon_inl.h"

namespace kvart::neon {
namespace {

constexpr int kRowsTogether = 4;
constexpr float kMinusInfinity = -std::numeric_limits<float>::infinity();
constexpr int32_t kLanes[8] = {0, 1, 2, 3, 4, 5, 6, 7};

// Rows [0, R) of a page. q, o: rows of (head_dim); visible, m, l: (R).
template <int R>
struct Rows {
  const float* q[R];
  float* o[R];
  int visible[R];
  float p[R][kMaxPageTokens];  // scores, then their powers; 0 in the last eight's lanes that are not visible
};

// p[r][t] = s_t for all groups of eight tokens that some row sees.
template <int R, class K>
void Scores(const K* keys, int head_dim, int tokens, Rows<R>& rows) {
  for (int t = 0; t < tokens; t += 8, keys += 8 * head_dim) {
    F8 s[R];
    KVART_UNROLL
    for (int r = 0; r < R; ++r) s[r] = Zero8();
    for (int c = 0; c < head_dim; c += 4) {
      float32x4_t q[R];
      KVART_UNROLL
      for (int r = 0; r < R; ++r) q[r] = vld1q_f32(rows.q[r] + c);
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
    for (int r = 0; r < R; ++r) Store8(rows.p[r] + t, s[r]);
  }
}

// Turns the scores of one row into powers; gives m and l.
void Powers(float* p, int visible, float* m, float* l) {
  const int32x4_t index_lo = vld1q_s32(kLanes), index_hi = vld1q_s32(kLanes + 4);
  const float32x4_t nothing = vdupq_n_f32(kMinusInfinity);
  F8 top = {nothing, nothing};
  for (int t = 0; t < visible; t += 8) {
    const int32x4_t left = vdupq_n_s32(visible - t);
    F8 s = Load8(p + t);
    s.lo = vbslq_f32(vcltq_s32(index_lo, left), s.lo, nothing);
    s.hi = vbslq_f32(vcltq_s32(index_hi, left), s.hi, nothing);
    top = {Larger(s.lo, top.lo), Larger(s.hi, top.hi)};
  }
  *m = vmaxvq_f32(Larger(top.lo, top.hi));
  const float32x4_t subtract = vdupq_n_f32(*m);
  F8 sum = Zero8();
  for (int t = 0; t < visible; t += 8) {
    const int32x4_t left = vdupq_n_s32(visible - t);
    const F8 s = Load8(p + t);
    F8 e = {Exp2(vsubq_f32(s.lo, subtract)), Exp2(vsubq_f32(s.hi, subtract))};
    e.lo = vreinterpretq_f32_u32(vandq_u32(vreinterpretq_u32_f32(e.lo), vcltq_s32(index_lo, left)));
    e.hi = vreinterpretq_f32_u32(vandq_u32(vreinterpretq_u32_f32(e.hi), vcltq_s32(index_hi, left)));
    sum = {vaddq_f32(sum.lo, e.lo), vaddq_f32(sum.hi, e.hi)};
    Store8(p + t, e);
  }
  *l = LaneSum(sum);
}

// o[d] = fma over t of p_t * v[t][d]. What a row does not see may be garbage, so the common part of all rows comes
// first and then each row's own rest.
template <int R, class V>
void Values(const V* values, int head_dim, Rows<R>& rows) {
  const int common = *std::min_element(rows.visible, rows.visible + R);
  for (int d = 0; d < head_dim; d += 8) {
    F8 o[R];
    KVART_UNROLL
    for (int r = 0; r < R; ++r) o[r] = Zero8();
    for (int t = 0; t < common; ++t) {
      const F8 v = Load8(values + t * head_dim + d);
      KVART_UNROLL
      for (int r = 0; r < R; ++r) {
        o[r].lo = vfmaq_n_f32(o[r].lo, v.lo, rows.p[r][t]);
        o[r].hi = vfmaq_n_f32(o[r].hi, v.hi, rows.p[r][t]);
      }
    }
    KVART_UNROLL
    for (int r = 0; r < R; ++r) {
      for (int t = common; t < rows.visible[r]; ++t) {
        const F8 v = Load8(values + t * head_dim + d);
        o[r].lo = vfmaq_n_f32(o[r].lo, v.lo, rows.p[r][t]);
        o[r].hi = vfmaq_n_f32(o[r].hi, v.hi, rows.p[r][t]);
      }
      Store8(rows.o[r] + d, o[r]);
    }
  }
}

template <int R, class K, class V>
void AttendRows(const AttendPageArgs& a, int64_t first) {
  Rows<R> rows;
  KVART_UNROLL
  for (int r = 0; r < R; ++r) {
    const int64_t row = first + r;
    rows.q[r] = a.q + row / a.group * a.q_stride + row % a.group * a.head_dim;
    rows.o[r] = a.o + row * a.head_dim;
    rows.visible[r] = a.visible[row / a.group];
  }
  const int most = *std::max_element(rows.visible, rows.visible + R);
  Scores<R>(static_cast<const K*>(a.k), a.head_dim, most, rows);
  KVART_UNROLL
  for (int r = 0; r < R; ++r) Powers(rows.p[r], rows.visible[r], a.m + first + r, a.l + first + r);
  Values<R>(static_cast<const V*>(a.v), a.head_dim, rows);
}

template <class K, class V>
void AttendPage(const AttendPageArgs& a) {
  const int64_t n_rows = a.n_tokens * a.group;
  int64_t row = 0;
  for (; row + kRowsTogether <= n_rows; row += kRowsTogether) AttendRows<kRowsTogether, K, V>(a, row);
  switch (n_rows - row) {
    case 3: AttendRows<3, K, V>(a, row); break;
    case 2: AttendRows<2, K, V>(a, row); break;
    case 1: AttendRows<1, K, V>(a, row); break;
    default: break;
  }
}

}  // namespace

const AttendPageKernel kAttendPage[] = {
    {"attend_page_f16_f16_neon", DType::kF16, DType::kF16, AttendPage<uint16_t, uint16_t>},
    {"attend_page_f32_f32_neon", DType::kF32, DType::kF32, AttendPage<float, float>},
    {"attend_page_f16_f32_neon", DType::kF16, DType::kF32, AttendPage<uint16_t, float>},
    {"attend_page_f32_f16_neon", DType::kF32, DType::kF16, AttendPage<float, uint16_t>},
};
const size_t kAttendPageCount = sizeof kAttendPage / sizeof kAttendPage[0];

}  // namespace kvart::neon

// One page's share of attention, and joining shares: the definition, in float, for F16 and F32 pages.
#include <algorithm>
#include <cmath>
#include <limits>

#include "kernels/scalar/scalar_inl.h"
#include "kernels/scalar/tables_scalar.h"
#include "quant/half.h"

namespace kvart::scalar {
namespace {

float ToFloat(float x) { return x; }
float ToFloat(uint16_t x) { return HalfToFloat(x); }

template <class K, class V>
void AttendPage(const AttendPageArgs& a) {
  const K* keys = static_cast<const K*>(a.k);
  const V* values = static_cast<const V*>(a.v);
  float p[kMaxPageTokens];
  for (int64_t row = 0; row < a.n_tokens * a.group; ++row) {
    const float* q = a.q + row / a.group * a.q_stride + row % a.group * a.head_dim;
    const int visible = a.visible[row / a.group];
    float* o = a.o + row * a.head_dim;
    std::fill(o, o + a.head_dim, 0.0f);
    float m = -std::numeric_limits<float>::infinity();
    for (int t = 0; t < visible; ++t) {
      float s = 0;
      for (int c = 0; c < a.head_dim; ++c) s = std::fma(q[c], ToFloat(keys[(t / 8 * a.head_dim + c) * 8 + t % 8]), s);
      p[t] = s;
      m = std::max(m, s);
    }
    float lanes[8] = {};
    for (int t = 0; t < visible; ++t) {
      p[t] = Exp2(p[t] - m);
      lanes[t % 8] += p[t];
      for (int d = 0; d < a.head_dim; ++d) o[d] = std::fma(p[t], ToFloat(values[t * a.head_dim + d]), o[d]);
    }
    a.m[row] = m;
    a.l[row] = LaneSum(lanes);
  }
}

}  // namespace

const AttendPageKernel kAttendPage[] = {
    {"attend_page_f16_f16_scalar", DType::kF16, DType::kF16, AttendPage<uint16_t, uint16_t>},
    {"attend_page_f32_f32_scalar", DType::kF32, DType::kF32, AttendPage<float, float>},
    {"attend_page_f16_f32_scalar", DType::kF16, DType::kF32, AttendPage<uint16_t, float>},
    {"attend_page_f32_f16_scalar", DType::kF32, DType::kF16, AttendPage<float, uint16_t>},
};
const size_t kAttendPageCount = std::size(kAttendPage);

void attend_merge_scalar(const AttendMergeArgs& a) {
  for (int64_t row = 0; row < a.n_rows; ++row) {
    const float m = a.m[row];
    if (m == -std::numeric_limits<float>::infinity()) continue;
    const float top = std::max(a.run_m[row], m);
    const float keep = Exp2(a.run_m[row] - top), take = Exp2(m - top);
    a.run_m[row] = top;
    a.run_l[row] = std::fma(a.l[row], take, a.run_l[row] * keep);
    const float* o = a.o + row * a.head_dim;
    float* run_o = a.run_o + row * a.head_dim;
    for (int d = 0; d < a.head_dim; ++d) run_o[d] = std::fma(o[d], take, run_o[d] * keep);
  }
}

}  // namespace kvart::scalar

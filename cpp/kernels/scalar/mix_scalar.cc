// Softmax over one page's scores, and the mix of its values in every format.
#include <algorithm>
#include <cmath>
#include <limits>

#include "kernels/scalar/scalar_inl.h"
#include "kernels/scalar/tables_scalar.h"
#include "quant/half.h"

namespace kvart::scalar {
namespace {

float ToFloat(float x) {
  return x;
}
float ToFloat(uint16_t x) {
  return HalfToFloat(x);
}

template <class V>
void MixFloat(const MixArgs& a) {
  const V* values = reinterpret_cast<const V*>(a.v);
  for (int r = 0; r < a.n_rows; ++r) {
    std::fill(a.o[r], a.o[r] + a.head_dim, 0.0f);
    for (int t = 0; t < a.visible[r]; ++t) {
      for (int d = 0; d < a.head_dim; ++d)
        a.o[r][d] = std::fma(a.p[r][t], ToFloat(values[t * a.head_dim + d]), a.o[r][d]);
    }
  }
}

void MixTokens(const MixArgs& a) {
  const KvBlock& b = *a.block;
  const float unit = b.format().code == KvCode::kInt4 ? 0.5f : 1.0f;
  float w[kMaxPageTokens];
  int8_t z[kMaxPageTokens];
  for (int r = 0; r < a.n_rows; ++r) {
    for (int g = 0; g < b.n_groups(); ++g) {
      float lanes[8] = {};
      for (int t = 0; t < b.tokens(); ++t) {
        w[t] = a.p[r][t] * ScaleOf(b, a.v, g, t);
        lanes[t % 8] = std::fma(a.p[r][t], CentreOf(b, a.v, g, t), lanes[t % 8]);
      }
      const float base = LaneSum(lanes), step = unit * QuantizeVector(w, b.tokens(), z);
      const int end = std::min(a.head_dim, (g + 1) * b.group());
      for (int d = g * b.group(); d < end; ++d) {
        int32_t dot = 0;
        for (int t = 0; t < b.tokens(); ++t) dot += z[t] * CodeOf(b, a.v, t, d);
        a.o[r][d] = std::fma(static_cast<float>(dot), step, base);
      }
    }
  }
}

}  // namespace

void softmax_scalar(const SoftmaxArgs& a) {
  for (int r = 0; r < a.n_rows; ++r) {
    float m = -std::numeric_limits<float>::infinity();
    for (int t = a.first; t < a.visible[r]; ++t) m = std::max(m, a.s[r][t]);
    float lanes[8] = {};
    for (int t = 0; t < std::max<int>(a.tokens, a.visible[r]); ++t) {
      const bool seen = t >= a.first && t < a.visible[r];
      a.s[r][t] = seen ? Exp2(a.s[r][t] - m) : 0.0f;
      if (seen) lanes[t % 8] += a.s[r][t];
    }
    a.m[r] = m;
    a.l[r] = LaneSum(lanes);
  }
}

const MixKernel kMix[] = {
    {"mix_f32_scalar", KvCode::kF32, MixFloat<float>},
    {"mix_f16_scalar", KvCode::kF16, MixFloat<uint16_t>},
    {"mix_int8_scalar", KvCode::kInt8, MixTokens},
    {"mix_int4_scalar", KvCode::kInt4, MixTokens},
};
const size_t kMixCount = std::size(kMix);

}  // namespace kvart::scalar

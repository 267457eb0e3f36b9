// The small kernels over rows of activations: norm, quantization, SiLU, halves; and the scalar table.
#include <algorithm>
#include <cmath>
#include <limits>

#include "kernels/scalar/scalar_inl.h"
#include "kernels/scalar/tables_scalar.h"
#include "quant/half.h"

namespace kvart::scalar {

void rms_norm_scalar(const float* x, const float* w, float eps, int64_t n, int64_t cols, float* y) {
  for (int64_t i = 0; i < n; ++i, x += cols, y += cols) {
    float lanes[8] = {};
    for (int64_t c = 0; c < cols; ++c) lanes[c % 8] = std::fma(x[c], x[c], lanes[c % 8]);
    const float r = 1.0f / std::sqrt(LaneSum(lanes) / static_cast<float>(cols) + eps);
    for (int64_t c = 0; c < cols; ++c) y[c] = x[c] * r * w[c];
  }
}

void quantize_scalar(const float* x, int64_t n_blocks, ActivationBlock* y) {
  for (int64_t b = 0; b < n_blocks; ++b, x += 32) {
    float top = 0;
    for (int i = 0; i < 32; ++i) top = std::fabs(x[i]) > top ? std::fabs(x[i]) : top;  // NaN is not greater
    const float inverse = top > 0 ? 127.0f / top : 0.0f;
    y[b].scale = top / 127.0f;
    std::fill(y[b].pair_sums, y[b].pair_sums + 6, int16_t{0});
    for (int i = 0; i < 32; ++i) {
      // The clamp keeps infinities and NaN inside int8 (NaN becomes -127); it changes no finite value.
      float scaled = x[i] * inverse;
      scaled = scaled > -127.0f ? scaled : -127.0f;
      scaled = scaled < 127.0f ? scaled : 127.0f;
      const float rounded =
          (scaled + kExp2Round) - kExp2Round;  // to nearest, ties to even, as the vector instructions do
      y[b].q[i] = static_cast<int8_t>(rounded);
      for (int16_t* pair : {&y[b].pair_sums[i / 16 * 2 + i % 4 / 2], &y[b].pair_sums[4 + i % 4 / 2]}) {
        *pair = static_cast<int16_t>(*pair + y[b].q[i]);
      }
    }
    y[b].sum = static_cast<float>(y[b].pair_sums[4] + y[b].pair_sums[5]) * y[b].scale;
  }
}

void silu_mul_scalar(const float* g, const float* u, int64_t n, float* y) {
  for (int64_t i = 0; i < n; ++i) y[i] = g[i] / (1.0f + Exp2(-g[i] * kLog2E)) * u[i];
}

void to_half_scalar(const float* x, int64_t n, uint16_t* y) {
  for (int64_t i = 0; i < n; ++i) y[i] = FloatToHalf(x[i]);
}

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

#include "quant/scale_search.h"

#include <cmath>

namespace kvart::quant_internal {
namespace {

constexpr int kLanes = 16;
constexpr float kSmallest = 0x1p-100f;  // a scale below it has no inverse worth having
constexpr float kRounder = 0x1.8p23f;   // adding and subtracting it rounds to the nearest integer

float Total(const float (&lanes)[kLanes]) {
  float sums[kLanes];
  for (int i = 0; i < kLanes; ++i) sums[i] = lanes[i];
  for (int half = kLanes / 2; half > 0; half /= 2) {
    for (int i = 0; i < half; ++i) sums[i] += sums[i + half];
  }
  return sums[0];
}

float InverseOf(float scale) {
  return std::fabs(scale) < kSmallest ? 0.0f : 1.0f / scale;
}

float Nearest(float x, float low, float high) {
  x = x > low ? x : low;
  x = x < high ? x : high;
  return (x + kRounder) - kRounder;
}

// Sums over a group, for the integers that are nearest with some scale and min.
struct Moments {
  float error;      // w * (x - scale * q - min)²
  float q, qq, xq;  // w * q, w * q², w * x * q
};

Moments Measure(const Codes& codes, int n, const float* x, const float* w, float scale, float min) {
  const float inverse = InverseOf(scale);
  const float low = static_cast<float>(codes.low), high = static_cast<float>(codes.high);
  float error[kLanes] = {}, q1[kLanes] = {}, q2[kLanes] = {}, xq[kLanes] = {};
  for (int i = 0; i < n; i += kLanes) {
    for (int l = 0; l < kLanes; ++l) {
      const float v = x[i + l], weight = w[i + l];
      const float q = Nearest((v - min) * inverse, low, high);
      const float off = v - scale * q - min;
      const float wq = weight * q;
      error[l] += weight * off * off;
      q1[l] += wq;
      q2[l] += wq * q;
      xq[l] += wq * v;
    }
  }
  return {Total(error), Total(q1), Total(q2), Total(xq)};
}

// Sums that do not depend on the integers.
struct Weights {
  float w, x;  // w, w * x
};

Weights Weigh(int n, const float* x, const float* w) {
  float sum[kLanes] = {}, sum_x[kLanes] = {};
  for (int i = 0; i < n; i += kLanes) {
    for (int l = 0; l < kLanes; ++l) {
      sum[l] += w[i + l];
      sum_x[l] += w[i + l] * x[i + l];
    }
  }
  return {Total(sum), Total(sum_x)};
}

// Least squares for given integers; false where these say nothing about a scale.
bool Solve(MinKind kind, const Weights& s, const Moments& m, float* scale, float* min) {
  if (!(m.qq > 0.0f)) return false;
  const double determinant = static_cast<double>(s.w) * m.qq - static_cast<double>(m.q) * m.q;
  if (kind != MinKind::kNone && determinant > 1e-6 * s.w * m.qq) {
    *scale = static_cast<float>((static_cast<double>(s.w) * m.xq - static_cast<double>(m.q) * s.x) / determinant);
    *min = static_cast<float>((static_cast<double>(m.qq) * s.x - static_cast<double>(m.q) * m.xq) / determinant);
    if (*scale > 0.0f && (kind == MinKind::kFree || *min <= 0.0f)) return true;
  }
  if (kind == MinKind::kFree) return false;
  *scale = m.xq / m.qq;
  *min = 0.0f;
  return kind == MinKind::kNone || *scale > 0.0f;
}

struct Range {
  float low, high;
};
Range RangeOf(int n, const float* x) {
  Range range = {x[0], x[0]};
  for (int i = 1; i < n; ++i) {
    range.low = x[i] < range.low ? x[i] : range.low;
    range.high = x[i] > range.high ? x[i] : range.high;
  }
  return range;
}

}  // namespace

Fit FindScale(const Codes& codes, int n, const float* x, const float* w) {
  const Range range = RangeOf(n, x);
  const Weights weights = Weigh(n, x, w);
  // Least squares tells what a start is good for: x² - scale * xq - min * x is what is left of x².
  Fit best;
  double best_gain = 0;
  const auto start = [&](float scale, float min) {
    const Moments m = Measure(codes, n, x, w, scale, min);
    if (!Solve(codes.min, weights, m, &scale, &min)) return;
    const double gain = static_cast<double>(scale) * m.xq + static_cast<double>(min) * weights.x;
    if (gain <= best_gain) return;
    best_gain = gain;
    best = {scale, min, 0};
  };
  if (codes.min == MinKind::kNone) {
    // The value of largest magnitude meets the integer of largest magnitude, or nearly so.
    const float extreme = range.high > -range.low ? range.high : range.low;
    if (extreme == 0.0f) return {};
    const float reach = static_cast<float>(-codes.low > codes.high ? codes.low : codes.high);
    for (int k = -8; k <= 8; ++k) start(extreme / (reach * (1.0f + 0.02f * static_cast<float>(k))), 0.0f);
  } else {
    const float low = codes.min == MinKind::kNegative && range.low > 0.0f ? 0.0f : range.low;
    if (range.high <= low) return {0.0f, low, 0.0f};
    for (int k = -8; k <= 8; ++k) {
      start((range.high - low) / (static_cast<float>(codes.high) + 0.1f * static_cast<float>(k)), low);
    }
  }
  Moments m = Measure(codes, n, x, w, best.scale, best.min);
  best.error = m.error;
  for (int k = 0; k < 3; ++k) {
    Fit next = best;
    if (!Solve(codes.min, weights, m, &next.scale, &next.min)) break;
    m = Measure(codes, n, x, w, next.scale, next.min);
    next.error = m.error;
    if (!(next.error < best.error)) break;
    best = next;
  }
  return best;
}

float ErrorOf(const Codes& codes, int n, const float* x, const float* w, float scale, float min) {
  return Measure(codes, n, x, w, scale, min).error;
}

void Round(const Codes& codes, int n, const float* x, float scale, float min, int8_t* q) {
  const float inverse = InverseOf(scale);
  const float low = static_cast<float>(codes.low), high = static_cast<float>(codes.high);
  for (int i = 0; i < n; ++i) q[i] = static_cast<int8_t>(Nearest((x[i] - min) * inverse, low, high));
}

}  // namespace kvart::quant_internal

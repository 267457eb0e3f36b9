#include "model/rope.h"

#include <algorithm>
#include <cmath>

namespace kvart {
namespace {

constexpr double kTwoPi = 6.283185307179586;

// YaRN: the pair whose wave makes `turns` turns over the original context.
double PairOfTurns(double turns, const RopeConfig& c, int head_dim) {
  return head_dim * std::log(c.original_ctx / (turns * kTwoPi)) / (2 * std::log(c.base));
}

}  // namespace

Rope::Rope(const RopeConfig& c, int head_dim) : frequency_(static_cast<size_t>(head_dim / 2)) {
  double base = c.base;
  // NTK-aware: stretch the slowest wave by the factor and leave the fastest as it is.
  if (c.scaling == RopeScaling::kNtk && head_dim > 2) base *= std::pow(c.factor, head_dim / (head_dim - 2.0));
  for (size_t i = 0; i < frequency_.size(); ++i)
    frequency_[i] = std::pow(base, -2.0 * static_cast<double>(i) / head_dim);

  if (c.scaling == RopeScaling::kLinear) {
    for (double& f : frequency_) f /= c.factor;
  }
  if (c.scaling == RopeScaling::kYarn) {
    // Fast waves stay, slow ones are interpolated, between them a ramp.
    const double low = std::max(0.0, std::floor(PairOfTurns(c.beta_fast, c, head_dim)));
    const double high = std::min(head_dim - 1.0, std::ceil(PairOfTurns(c.beta_slow, c, head_dim)));
    const double width = std::max(0.001, high - low);
    for (size_t i = 0; i < frequency_.size(); ++i) {
      const double interpolated = std::clamp((static_cast<double>(i) - low) / width, 0.0, 1.0);
      frequency_[i] = frequency_[i] / c.factor * interpolated + frequency_[i] * (1 - interpolated);
    }
    magnitude_ = c.attn_factor * (c.factor > 1 ? 0.1 * std::log(c.factor) + 1.0 : 1.0);
  }
}

void Rope::Angles(int64_t pos, float* out) const {
  Write(pos, magnitude_, out);
}
void Rope::Turn(int64_t positions, float* out) const {
  Write(positions, 1.0, out);
}

void Rope::Write(int64_t pos, double magnitude, float* out) const {
  for (size_t i = 0; i < frequency_.size(); ++i) {
    const double angle = static_cast<double>(pos) * frequency_[i];
    out[2 * i] = static_cast<float>(std::cos(angle) * magnitude);
    out[2 * i + 1] = static_cast<float>(std::sin(angle) * magnitude);
  }
}

}  // namespace kvart

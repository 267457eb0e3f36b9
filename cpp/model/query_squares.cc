#include "model/query_squares.h"

#include <cstddef>

namespace kvart {
namespace {

constexpr uint64_t kReach = 8192;  // positions that queries are turned over

}  // namespace

QuerySquares::QuerySquares(const ModelConfig& config)
    : n_heads_(config.n_heads),
      n_kv_heads_(config.n_kv_heads),
      head_dim_(config.head_dim),
      sums_(static_cast<size_t>(config.n_layers) * static_cast<size_t>(config.n_kv_heads * config.head_dim)) {}

void QuerySquares::Add(int layer, int64_t n, const Rope& rope, std::span<const float> q) {
  const size_t dim = static_cast<size_t>(head_dim_), half = dim / 2;
  const int group = n_heads_ / n_kv_heads_;
  std::vector<float> angles(dim);
  for (int64_t i = 0; i < n; ++i) {
    // Multiples of the golden section fill the range evenly, however many there are.
    const uint64_t turn = (static_cast<uint64_t>(i) * 2654435769u & 0xffffffffu) * kReach >> 32;
    rope.Turn(static_cast<int64_t>(turn), angles.data());
    for (int h = 0; h < n_heads_; ++h) {
      const float* row = q.data() + static_cast<size_t>(i * n_heads_ + h) * dim;
      float* sums = sums_.data() + static_cast<size_t>(layer * n_kv_heads_ + h / group) * dim;
      for (size_t c = 0; c < half; ++c) {
        const float cos = angles[2 * c], sin = angles[2 * c + 1];
        const float a = row[c] * cos - row[c + half] * sin, b = row[c + half] * cos + row[c] * sin;
        sums[c] = sums[c] + a * a;
        sums[c + half] = sums[c + half] + b * b;
      }
    }
  }
}

}  // namespace kvart

// Scores of one page's keys, in every format: the definition that the fast kernels are tested against.
#include <algorithm>
#include <cmath>

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

template <class K>
void ScoreFloat(const ScoreArgs& a) {
  const K* keys = reinterpret_cast<const K*>(a.k);
  for (int r = 0; r < a.n_rows; ++r) {
    for (int t = 0; t < a.tokens; ++t) {
      float s = 0;
      for (int c = 0; c < a.head_dim; ++c)
        s = std::fma(a.q[r][c], ToFloat(keys[(t / 8 * a.head_dim + c) * 8 + t % 8]), s);
      a.s[r][t] = s;
    }
  }
}

// Σ z_c x_c over channels [begin, end): x = 2 n - 15 for four bits, n for eight.
int32_t CodeDot(const ScoreArgs& a, const int8_t* z, int t, int begin, int end) {
  int32_t dot = 0;
  for (int c = begin; c < end; ++c) dot += z[c] * CodeOf(*a.block, a.k, t, c);
  return dot;
}

void ScoreChannels(const ScoreArgs& a) {
  const KvBlock& b = *a.block;
  const float unit = b.format().code == KvCode::kInt4 ? 0.5f : 1.0f;
  float u[kMaxHeadDim];
  int8_t z[kMaxHeadDim], rest[kMaxHeadDim];
  for (int r = 0; r < a.n_rows; ++r) {
    for (int g = 0; g * b.group() < a.tokens; ++g) {
      float lanes[8] = {};
      for (int c = 0; c < a.head_dim; ++c) {
        u[c] = a.q[r][c] * ScaleOf(b, a.k, g, c);
        lanes[c % 8] = std::fma(a.q[r][c], CentreOf(b, a.k, g, c), lanes[c % 8]);
      }
      for (int i = 0; i < a.fine.n; ++i) u[a.fine.channel(i)] = 0;
      const float base = LaneSum(lanes), step = QuantizeVector(u, a.head_dim, z);
      for (int c = 0; c < a.head_dim; ++c) u[c] = std::fma(-static_cast<float>(z[c]), step, u[c]);
      const float rest_step = QuantizeVector(u, a.head_dim, rest);
      const int end = std::min(a.tokens, (g + 1) * b.group());
      for (int t = g * b.group(); t < end; ++t) {
        int32_t dot = 0, rest_dot = 0;
        for (int c = 0; c < a.head_dim; ++c) {
          const int32_t code = CodeOf(b, a.k, t, c);
          dot += z[c] * code;
          rest_dot += rest[c] * code;
        }
        const float s = std::fma(static_cast<float>(dot), unit * step, base);
        a.s[r][t] = b.format().fine() ? s : std::fma(static_cast<float>(rest_dot), unit * rest_step, s);
      }
    }
  }
}

void ScoreTokens(const ScoreArgs& a) {
  const KvBlock& b = *a.block;
  const float unit = b.format().code == KvCode::kInt4 ? 0.5f : 1.0f;
  int8_t z[kMaxHeadDim];
  for (int r = 0; r < a.n_rows; ++r) {
    std::fill(a.s[r], a.s[r] + a.tokens, 0.0f);
    for (int g = 0; g < b.n_groups(); ++g) {
      const int begin = g * b.group(), end = std::min(a.head_dim, begin + b.group());
      float lanes[8] = {};
      for (int c = begin; c < end; ++c) lanes[c % 8] += a.q[r][c];
      const float base = LaneSum(lanes), step = unit * QuantizeVector(a.q[r] + begin, end - begin, z + begin);
      for (int t = 0; t < a.tokens; ++t) {
        float scale = ScaleOf(b, a.k, g, t), centre = CentreOf(b, a.k, g, t);
        if (b.format().norm) {
          scale = scale * NormOf(b, a.k, t);
          centre = centre * NormOf(b, a.k, t);
        }
        a.s[r][t] = std::fma(static_cast<float>(CodeDot(a, z, t, begin, end)), step * scale, a.s[r][t]);
        a.s[r][t] = std::fma(base, centre, a.s[r][t]);
      }
    }
  }
}

}  // namespace

void refine_scalar(const RefineArgs& a) {
  for (int r = 0; r < a.n_rows; ++r) {
    for (int i = 0; i < a.fine.n; ++i) {
      const int c = a.fine.channel(i);
      const uint8_t* codes = a.fine.codes + static_cast<size_t>(i) * a.fine.row_bytes;
      const float u = a.q[r][c] * ScaleOf(*a.block, a.k, 0, c);
      for (int t = 0; t < a.tokens; ++t) {
        const KvBlock::At at = a.block->CodeAt(t, c);
        const int n = a.k[at.byte] >> at.shift & 15, m = codes[t / 16 * 8 + t % 8] >> t % 16 / 8 * 4 & 15;
        a.s[r][t] = std::fma(u, static_cast<float>(16 * n + m) * 0.0625f - 7.96875f, a.s[r][t]);
      }
    }
  }
}

const ScoreKernel kScore[] = {
    {"score_f32_scalar", KvCode::kF32, KvAxis::kChannel, ScoreFloat<float>},
    {"score_f16_scalar", KvCode::kF16, KvAxis::kChannel, ScoreFloat<uint16_t>},
    {"score_int8_channel_scalar", KvCode::kInt8, KvAxis::kChannel, ScoreChannels},
    {"score_int4_channel_scalar", KvCode::kInt4, KvAxis::kChannel, ScoreChannels},
    {"score_int8_token_scalar", KvCode::kInt8, KvAxis::kToken, ScoreTokens},
    {"score_int4_token_scalar", KvCode::kInt4, KvAxis::kToken, ScoreTokens},
};
const size_t kScoreCount = std::size(kScore);

}  // namespace kvart::scalar

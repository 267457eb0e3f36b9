// The small kernels over rows of activations: norm, quantization, SiLU, halves, joining attention shares.
#include <limits>

#include "kernels/avx2/avx2_inl.h"
#include "kernels/avx2/rows_avx2.h"

namespace kvart::avx2 {

void rms_norm_avx2(const float* x, const float* w, float eps, int64_t n, int64_t cols, float* y) {
  for (int64_t i = 0; i < n; ++i, x += cols, y += cols) {
    __m256 sum = _mm256_setzero_ps();
    for (int64_t c = 0; c < cols; c += 8) {
      const __m256 v = _mm256_loadu_ps(x + c);
      sum = _mm256_fmadd_ps(v, v, sum);
    }
    const __m128 mean = _mm_set_ss(LaneSum(sum) / static_cast<float>(cols) + eps);
    const __m256 r = _mm256_set1_ps(1.0f / _mm_cvtss_f32(_mm_sqrt_ss(mean)));
    for (int64_t c = 0; c < cols; c += 8) {
      _mm256_storeu_ps(y + c, _mm256_mul_ps(_mm256_mul_ps(_mm256_loadu_ps(x + c), r), _mm256_loadu_ps(w + c)));
    }
  }
}

void quantize_avx2(const float* x, int64_t n_blocks, ActivationBlock* y) {
  const __m256 magnitude = _mm256_castsi256_ps(_mm256_set1_epi32(0x7fffffff));
  const __m256i order = _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7);
  for (int64_t b = 0; b < n_blocks; ++b, x += 32) {
    __m256 v[4], top = _mm256_setzero_ps();
    for (int i = 0; i < 4; ++i) {
      v[i] = _mm256_loadu_ps(x + 8 * i);
      top = _mm256_max_ps(_mm256_and_ps(v[i], magnitude), top);  // NaN: the second operand, top, stays
    }
    const float max = LaneMax(top);
    y[b].scale = max / 127.0f;
    const __m256 inverse = _mm256_set1_ps(max > 0 ? 127.0f / max : 0.0f);
    __m256i q[4];
    for (int i = 0; i < 4; ++i) {
      __m256 s = _mm256_max_ps(_mm256_mul_ps(v[i], inverse), _mm256_set1_ps(-127.0f));
      s = _mm256_min_ps(s, _mm256_set1_ps(127.0f));
      q[i] = _mm256_cvtps_epi32(s);
    }
    const __m256i packed = _mm256_permutevar8x32_epi32(
        _mm256_packs_epi16(_mm256_packs_epi32(q[0], q[1]), _mm256_packs_epi32(q[2], q[3])), order);
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(y[b].q), packed);
    // Sums of pairs, then over the four dwords of each half: int16 lanes (i % 4) / 2.
    __m256i pairs = _mm256_maddubs_epi16(_mm256_set1_epi8(1), packed);
    pairs = _mm256_add_epi16(pairs, _mm256_shuffle_epi32(pairs, 0x4e));
    pairs = _mm256_add_epi16(pairs, _mm256_shuffle_epi32(pairs, 0xb1));
    const __m128i low = _mm256_castsi256_si128(pairs), high = _mm256_extracti128_si256(pairs, 1);
    const __m128i all = _mm_add_epi16(low, high);
    _mm_storeu_si32(y[b].pair_sums, low);
    _mm_storeu_si32(y[b].pair_sums + 2, high);
    _mm_storeu_si32(y[b].pair_sums + 4, all);
    const int sum = _mm_cvtsi128_si32(_mm_madd_epi16(all, _mm_set1_epi16(1)));
    y[b].sum = static_cast<float>(sum) * y[b].scale;
  }
}

void silu_mul_avx2(const float* g, const float* u, int64_t n, float* y) {
  const __m256 one = _mm256_set1_ps(1.0f), sign = _mm256_set1_ps(-0.0f), log2e = _mm256_set1_ps(kLog2E);
  int64_t i = 0;
  for (; i + 8 <= n; i += 8) {
    const __m256 v = _mm256_loadu_ps(g + i);
    const __m256 e = Exp2(_mm256_mul_ps(_mm256_xor_ps(v, sign), log2e));
    _mm256_storeu_ps(y + i, _mm256_mul_ps(_mm256_div_ps(v, _mm256_add_ps(one, e)), _mm256_loadu_ps(u + i)));
  }
  for (; i < n; ++i) {
    const __m256 v = _mm256_set1_ps(g[i]);
    const __m256 e = Exp2(_mm256_mul_ps(_mm256_xor_ps(v, sign), log2e));
    y[i] = _mm256_cvtss_f32(_mm256_div_ps(v, _mm256_add_ps(one, e))) * u[i];
  }
}

void to_half_avx2(const float* x, int64_t n, uint16_t* y) {
  int64_t i = 0;
  for (; i + 8 <= n; i += 8) {
    _mm_storeu_si128(reinterpret_cast<__m128i*>(y + i),
                     _mm256_cvtps_ph(_mm256_loadu_ps(x + i), _MM_FROUND_TO_NEAREST_INT));
  }
  for (; i < n; ++i) y[i] = static_cast<uint16_t>(_cvtss_sh(x[i], _MM_FROUND_TO_NEAREST_INT));
}

void attend_merge_avx2(const AttendMergeArgs& a) {
  for (int64_t row = 0; row < a.n_rows; ++row) {
    const float m = a.m[row];
    if (m == -std::numeric_limits<float>::infinity()) continue;
    const float top = a.run_m[row] < m ? m : a.run_m[row];
    const __m256 keep = Exp2(_mm256_set1_ps(a.run_m[row] - top)), take = Exp2(_mm256_set1_ps(m - top));
    a.run_m[row] = top;
    const __m128 l = _mm_mul_ss(_mm_set_ss(a.run_l[row]), _mm256_castps256_ps128(keep));
    a.run_l[row] = _mm_cvtss_f32(_mm_fmadd_ss(_mm_set_ss(a.l[row]), _mm256_castps256_ps128(take), l));
    const float* o = a.o + row * a.head_dim;
    float* run_o = a.run_o + row * a.head_dim;
    for (int d = 0; d < a.head_dim; d += 8) {
      const __m256 kept = _mm256_mul_ps(_mm256_loadu_ps(run_o + d), keep);
      _mm256_storeu_ps(run_o + d, _mm256_fmadd_ps(_mm256_loadu_ps(o + d), take, kept));
    }
  }
}

}  // namespace kvart::avx2

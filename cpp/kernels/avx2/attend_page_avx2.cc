// One page's share of attention over F16 and F32 pages: up to eight query rows share every key and value that is loaded.
#include <algorithm>
#include <limits>

#include "kernels/avx2/avx2_inl.h"
#include "kernels/avx2/rows_avx2.h"

namespace kvart::avx2 {
namespace {

inline __m256 Load8(const float* p) { return _mm256_loadu_ps(p); }
inline __m256 Load8(const uint16_t* p) { return LoadHalf8(p); }

constexpr int kMaxRows = 8;  // query rows at a time: eight sums in flight hide the latency of FMA

struct Rows {
  const float* q[kMaxRows];  // (head_dim)
  float* o[kMaxRows];        // (head_dim)
  int visible[kMaxRows];
  int most_visible = 0;
};

template <class K, class V, int R>
void Attend(const AttendPageArgs& a, const Rows& rows, float* m, float* l) {
  const int head_dim = a.head_dim;
  alignas(32) float p[R][kMaxPageTokens];
  for (int t = 0; t < rows.most_visible; t += 8) {
    const K* keys = static_cast<const K*>(a.k) + static_cast<int64_t>(t) * head_dim;
    __m256 s[R];
    for (int r = 0; r < R; ++r) s[r] = _mm256_setzero_ps();
    for (int c = 0; c < head_dim; ++c) {
      const __m256 k = Load8(keys + c * 8);
#pragma GCC unroll 8
      for (int r = 0; r < R; ++r) s[r] = _mm256_fmadd_ps(_mm256_broadcast_ss(rows.q[r] + c), k, s[r]);
    }
    for (int r = 0; r < R; ++r) _mm256_store_ps(p[r] + t, s[r]);
  }

  for (int r = 0; r < R; ++r) {
    const int visible = rows.visible[r];
    float* w = p[r];
    const int whole = visible / 8 * 8;
    __m256 top = _mm256_set1_ps(-std::numeric_limits<float>::infinity());
    for (int t = 0; t < whole; t += 8) top = _mm256_max_ps(top, _mm256_load_ps(w + t));
    float max = LaneMax(top);
    for (int t = whole; t < visible; ++t) max = std::max(max, w[t]);
    // Behind the visible tokens: minus infinity here, and the weight 0 below.
    for (int t = visible; t < rows.most_visible || t % 8 != 0; ++t) w[t] = -std::numeric_limits<float>::infinity();
    const __m256 shift = _mm256_set1_ps(max);
    __m256 sum = _mm256_setzero_ps();
    for (int t = 0; t < visible; t += 8) {
      const __m256 s = _mm256_load_ps(w + t);
      const __m256 gone = _mm256_cmp_ps(s, _mm256_set1_ps(-std::numeric_limits<float>::infinity()), _CMP_EQ_OQ);
      const __m256 e = _mm256_andnot_ps(gone, Exp2(_mm256_sub_ps(s, shift)));
      _mm256_store_ps(w + t, e);
      sum = _mm256_add_ps(sum, e);
    }
    m[r] = max;
    l[r] = LaneSum(sum);
  }

  const V* values = static_cast<const V*>(a.v);
  int common = rows.most_visible;  // tokens that all rows see
  for (int r = 0; r < R; ++r) common = std::min(common, rows.visible[r]);
  for (int d = 0; d < head_dim; d += 8) {
    __m256 o[R];
    for (int r = 0; r < R; ++r) o[r] = _mm256_setzero_ps();
    for (int t = 0; t < common; ++t) {
      const __m256 v = Load8(values + static_cast<int64_t>(t) * head_dim + d);
#pragma GCC unroll 8
      for (int r = 0; r < R; ++r) o[r] = _mm256_fmadd_ps(_mm256_broadcast_ss(p[r] + t), v, o[r]);
    }
    for (int r = 0; r < R; ++r) {
      for (int t = common; t < rows.visible[r]; ++t) {
        const __m256 v = Load8(values + static_cast<int64_t>(t) * head_dim + d);
        o[r] = _mm256_fmadd_ps(_mm256_broadcast_ss(p[r] + t), v, o[r]);
      }
      _mm256_storeu_ps(rows.o[r] + d, o[r]);
    }
  }
}

template <class K, class V>
void AttendPage(const AttendPageArgs& a) {
  const int64_t n_rows = a.n_tokens * a.group;
  for (int64_t first = 0; first < n_rows; first += kMaxRows) {
    const int n = static_cast<int>(std::min<int64_t>(kMaxRows, n_rows - first));
    Rows rows;
    for (int r = 0; r < n; ++r) {
      const int64_t row = first + r;
      rows.q[r] = a.q + row / a.group * a.q_stride + row % a.group * a.head_dim;
      rows.o[r] = a.o + row * a.head_dim;
      rows.visible[r] = a.visible[row / a.group];
      rows.most_visible = std::max(rows.most_visible, rows.visible[r]);
    }
    float* m = a.m + first;
    float* l = a.l + first;
    switch (n) {
      case 1: Attend<K, V, 1>(a, rows, m, l); break;
      case 2: Attend<K, V, 2>(a, rows, m, l); break;
      case 3: Attend<K, V, 3>(a, rows, m, l); break;
      case 4: Attend<K, V, 4>(a, rows, m, l); break;
      case 5: Attend<K, V, 5>(a, rows, m, l); break;
      case 6: Attend<K, V, 6>(a, rows, m, l); break;
      case 7: Attend<K, V, 7>(a, rows, m, l); break;
      default: Attend<K, V, 8>(a, rows, m, l); break;
    }
  }
}

}  // namespace

const AttendPageKernel kAttendPage[] = {
    {"attend_page_f16_f16_avx2", DType::kF16, DType::kF16, AttendPage<uint16_t, uint16_t>},
    {"attend_page_f32_f32_avx2", DType::kF32, DType::kF32, AttendPage<float, float>},
    {"attend_page_f16_f32_avx2", DType::kF16, DType::kF32, AttendPage<uint16_t, float>},
    {"attend_page_f32_f16_avx2", DType::kF32, DType::kF16, AttendPage<float, uint16_t>},
};
const size_t kAttendPageCount = sizeof kAttendPage / sizeof kAttendPage[0];

}  // namespace kvart::avx2

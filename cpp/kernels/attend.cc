#include "kernels/attend.h"

#include <algorithm>

namespace kvart {
void AttendPage(const KernelTable& table, const PageKernels& kernels, const AttendPageArgs& a) {
  alignas(64) float s[kMaxAttendRows][kMaxPageTokens];
  const int64_t n_rows = a.n_tokens * a.group;
  for (int64_t begin = 0; begin < n_rows; begin += kMaxAttendRows) {
    const int n = static_cast<int>(std::min<int64_t>(kMaxAttendRows, n_rows - begin));
    const float* q[kMaxAttendRows];
    float* o[kMaxAttendRows];
    int32_t visible[kMaxAttendRows];
    int32_t most = 0;
    for (int r = 0; r < n; ++r) {
      const int64_t row = begin + r;
      q[r] = a.q + row / a.group * a.q_stride + row % a.group * a.head_dim;
      o[r] = a.o + row * a.head_dim;
      visible[r] = a.visible[row / a.group];
      most = std::max(most, visible[r]);
    }
    ScoreArgs score;
    score.k = a.k;
    score.block = kernels.keys;
    score.head_dim = a.head_dim;
    score.tokens = most;
    score.n_rows = n;
    score.fine = a.fine;
    score.q = q;
    score.s = s;
    if (begin == 0) score.ahead = a.next_k;
    kernels.score->run(score);
    if (a.fine.n > 0) {
      RefineArgs refine;
      refine.k = a.k;
      refine.block = kernels.keys;
      refine.fine = a.fine;
      refine.tokens = most;
      refine.n_rows = n;
      refine.q = q;
      refine.s = s;
      table.refine(refine);
    }
    SoftmaxArgs softmax;
    softmax.first = a.first;
    softmax.tokens = kernels.values != nullptr ? kernels.values->tokens() : most;
    softmax.n_rows = n;
    softmax.visible = visible;
    softmax.s = s;
    softmax.m = a.m + begin;
    softmax.l = a.l + begin;
    table.softmax(softmax);
    MixArgs mix;
    mix.v = a.v;
    mix.block = kernels.values;
    mix.head_dim = a.head_dim;
    mix.n_rows = n;
    mix.visible = visible;
    mix.p = s;
    mix.o = o;
    if (begin == 0) mix.ahead = a.next_v;
    kernels.mix->run(mix);
  }
}

}  // namespace kvart

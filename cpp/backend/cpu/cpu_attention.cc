// Attention on the CPU: appending K/V to pages, and one streaming pass over them, page by page.
#include <algorithm>
#include <cstring>
#include <limits>

#include "backend/cpu/cpu_backend.h"

namespace kvart {
namespace {

int64_t DivideUp(int64_t a, int64_t b) { return (a + b - 1) / b; }

const AttendPageKernel& PageKernel(const KernelTable& kernels, const KvGeometry& g) {
  return *FindAttendPage(kernels, g.k_type, g.v_type);  // CheckGeometry let only known formats through
}

// One row of one head into its page: keys into their tile, values as they are.
template <class T>
void PutKey(const T* k, int64_t t, int head_dim, Address keys) {
  for (int c = 0; c < head_dim; ++c) HostPointer<T>(keys)[KeyIndex(t, c, head_dim)] = k[c];
}
template <class T>
void PutValue(const T* v, int64_t t, int head_dim, Address values) {
  std::memcpy(HostPointer<T>(values) + ValueIndex(t, 0, head_dim), v, sizeof(T) * static_cast<size_t>(head_dim));
}

constexpr int kMaxHeadDim = 1024;  // checked when a model is loaded

}  // namespace

void CpuBackend::AppendKv(const AttentionShape& shape, std::span<const KvSpan> spans, const float* k, const float* v) {
  const int head_dim = shape.head_dim;
  for (const KvSpan& span : spans) {
    const KvGeometry& g = span.view.geometry;
    const auto put = [&](int64_t i) {  // row i of the span
      const int64_t pos = span.pos + i;
      const KvView::Page& page = span.view.pages[static_cast<size_t>(pos / g.page_tokens)];
      const int64_t t = pos % g.page_tokens;
      uint16_t halves[kMaxHeadDim];
      for (int h = 0; h < shape.n_kv_heads; ++h) {
        const int64_t row = ((span.first_row + i) * shape.n_kv_heads + h) * head_dim;
        const Address keys = page.k + static_cast<Address>(h * span.view.head_stride);
        const Address values = page.v + static_cast<Address>(h * span.view.head_stride);
        if (g.k_type == DType::kF32) {
          PutKey(k + row, t, head_dim, keys);
        } else {
          kernels_.to_half(k + row, head_dim, halves);
          PutKey(halves, t, head_dim, keys);
        }
        if (g.v_type == DType::kF32) {
          PutValue(v + row, t, head_dim, values);
        } else {
          kernels_.to_half(v + row, head_dim, halves);
          PutValue(halves, t, head_dim, values);
        }
      }
    };
    ForRows(span.n, [&](int64_t first, int64_t count) {
      for (int64_t i = first; i < first + count; ++i) put(i);
    });
  }
}

namespace {

// Scratch of one task: shares of one page and the running sums, for `rows` query rows.
struct Shares {
  float *m, *l, *o, *run_m, *run_l, *run_o;
  static size_t Floats(int64_t rows, int head_dim) { return static_cast<size_t>(rows * (4 + 2 * head_dim)); }
  Shares(float* p, int64_t rows, int head_dim)
      : m(p), l(m + rows), o(l + rows), run_m(o + rows * head_dim), run_l(run_m + rows), run_o(run_l + rows) {
    std::fill(run_m, run_m + rows, -std::numeric_limits<float>::infinity());
    std::fill(run_l, run_l + rows * (1 + head_dim), 0.0f);
  }
};

constexpr int64_t kBlockTokens = 16;  // query tokens a task in prefill

// out[token][head] = O / L for the heads of one KV head.
void WriteOut(const float* l, const float* o, int64_t n_tokens, int group, int head_dim, int64_t out_stride, float* out) {
  for (int64_t i = 0; i < n_tokens; ++i) {
    for (int g = 0; g < group; ++g, ++l, o += head_dim) {
      float* to = out + i * out_stride + g * head_dim;
      for (int d = 0; d < head_dim; ++d) to[d] = o[d] / *l;
    }
  }
}

}  // namespace

// Prefill: query tokens [first, first + count) of a span, all pages in order.
void CpuBackend::AttendBlock(const AttentionShape& shape, const KvSpan& span, int kv_head, int64_t first, int64_t count,
                             const float* q, float* out, int thread) {
  const KvGeometry& g = span.view.geometry;
  const int group = shape.n_heads / shape.n_kv_heads;
  const int64_t row_stride = static_cast<int64_t>(shape.n_heads) * shape.head_dim;
  const int64_t offset = (span.first_row + first) * row_stride + static_cast<int64_t>(kv_head) * group * shape.head_dim;
  const Shares s(reinterpret_cast<float*>(Scratch(thread)), count * group, shape.head_dim);
  int32_t visible[kBlockTokens];

  AttendPageArgs args;
  args.head_dim = shape.head_dim;
  args.n_tokens = count;
  args.group = group;
  args.q = q + offset;
  args.q_stride = row_stride;
  args.visible = visible;
  args.m = s.m;
  args.l = s.l;
  args.o = s.o;
  const int64_t last = span.pos + first + count - 1;
  for (int64_t p = 0; p <= last / g.page_tokens; ++p) {
    for (int64_t i = 0; i < count; ++i) {
      const int64_t seen = span.pos + first + i + 1 - p * g.page_tokens;
      visible[i] = static_cast<int32_t>(std::clamp<int64_t>(seen, 0, g.page_tokens));
    }
    const KvView::Page& page = span.view.pages[static_cast<size_t>(p)];
    const Address stride = static_cast<Address>(kv_head * span.view.head_stride);
    args.k = HostPointer<void>(page.k + stride);
    args.v = HostPointer<void>(page.v + stride);
    PageKernel(kernels_, g).run(args);
    kernels_.attend_merge({count * group, shape.head_dim, s.m, s.l, s.o, s.run_m, s.run_l, s.run_o});
  }
  WriteOut(s.run_l, s.run_o, count, group, shape.head_dim, row_stride, out + offset);
}

// Decode: one token; pages are shared out over the threads, and their shares joined in order of pages.
void CpuBackend::AttendByPages(const AttentionShape& shape, const KvSpan& span, const float* q, float* out) {
  const KvGeometry& g = span.view.geometry;
  const int group = shape.n_heads / shape.n_kv_heads, head_dim = shape.head_dim;
  const int64_t n_pages = span.pos / g.page_tokens + 1;
  const int64_t row_stride = static_cast<int64_t>(shape.n_heads) * head_dim;
  const int64_t share = group * (2 + head_dim);  // floats of one page of one head: m, l, o
  partial_.resize(static_cast<size_t>(n_pages * shape.n_kv_heads * share));

  constexpr int64_t kPagesPerTask = 4;
  const int64_t tasks_per_head = DivideUp(n_pages, kPagesPerTask);
  pool_.Run(tasks_per_head * shape.n_kv_heads, [&](int64_t task, int) {
    const int64_t head = task / tasks_per_head, begin = task % tasks_per_head * kPagesPerTask;
    for (int64_t p = begin; p < std::min(n_pages, begin + kPagesPerTask); ++p) {
      const int32_t visible = static_cast<int32_t>(std::min<int64_t>(span.pos + 1 - p * g.page_tokens, g.page_tokens));
      const KvView::Page& page = span.view.pages[static_cast<size_t>(p)];
      const Address stride = static_cast<Address>(head * span.view.head_stride);
      float* m = partial_.data() + (head * n_pages + p) * share;
      AttendPageArgs args;
      args.k = HostPointer<void>(page.k + stride);
      args.v = HostPointer<void>(page.v + stride);
      args.head_dim = head_dim;
      args.n_tokens = 1;
      args.group = group;
      args.q = q + span.first_row * row_stride + head * group * head_dim;
      args.q_stride = row_stride;
      args.visible = &visible;
      args.m = m;
      args.l = m + group;
      args.o = m + 2 * group;
      PageKernel(kernels_, g).run(args);
    }
  });
  for (int h = 0; h < shape.n_kv_heads; ++h) {
    const Shares s(reinterpret_cast<float*>(Scratch(0)), group, head_dim);
    for (int64_t p = 0; p < n_pages; ++p) {
      const float* m = partial_.data() + (h * n_pages + p) * share;
      kernels_.attend_merge({group, head_dim, m, m + group, m + 2 * group, s.run_m, s.run_l, s.run_o});
    }
    WriteOut(s.run_l, s.run_o, 1, group, head_dim, row_stride,
             out + span.first_row * row_stride + static_cast<int64_t>(h) * group * head_dim);
  }
}

Status CpuBackend::Attend(const AttentionShape& shape, Address q, std::span<const KvSpan> spans, Address out) {
  const int group = shape.n_heads / shape.n_kv_heads;
  KVART_RETURN_IF_ERROR(ReserveScratch(Shares::Floats(kBlockTokens * group, shape.head_dim) * sizeof(float)));
  for (const KvSpan& span : spans) {
    if (span.n == 1) {
      AttendByPages(shape, span, HostPointer<float>(q), HostPointer<float>(out));
      continue;
    }
    const int64_t blocks = DivideUp(span.n, kBlockTokens);
    pool_.Run(blocks * shape.n_kv_heads, [&](int64_t task, int thread) {
      const int64_t first = (blocks - 1 - task / shape.n_kv_heads) * kBlockTokens;  // the longest first
      AttendBlock(shape, span, static_cast<int>(task % shape.n_kv_heads), first, std::min(kBlockTokens, span.n - first),
                  HostPointer<float>(q), HostPointer<float>(out), thread);
    });
  }
  return Status::Ok();
}

}  // namespace kvart

// Attention on the CPU: appending K/V to the open page, sealing it, and one streaming pass over all runs of K/V.
#include <algorithm>
#include <cstring>
#include <limits>

#include "backend/cpu/cpu_backend.h"
#include "kernels/attend.h"
#include "quant/half.h"

namespace kvart {
namespace {

int64_t DivideUp(int64_t a, int64_t b) {
  return (a + b - 1) / b;
}

constexpr int kMaxHeadDim = 1024;  // checked when a model is loaded

// One row of one head into its page: keys into their tile, values as they are.
template <class T>
void PutKey(const T* k, int64_t t, int head_dim, Address keys) {
  for (int c = 0; c < head_dim; ++c) HostPointer<T>(keys)[KeyIndex(t, c, head_dim)] = k[c];
}
template <class T>
void PutValue(const T* v, int64_t t, int head_dim, Address values) {
  std::memcpy(HostPointer<T>(values) + ValueIndex(t, 0, head_dim), v, sizeof(T) * static_cast<size_t>(head_dim));
}

// The kernels and layouts of a geometry's two kinds of runs.
struct RunKernels {
  RunKernels(const KernelTable& table, const KvGeometry& g)
      : layout(g),
        open{FindScore(table, {g.open_k()}), FindMix(table, {g.open_v()}), nullptr, nullptr},
        sealed{FindScore(table, g.formats.k), FindMix(table, g.formats.v), &layout.keys(), &layout.values()} {}
  SealedOffsets layout;
  PageKernels open, sealed;
};

// Shares of one run for up to n rows, and the running sums they are joined into.
struct Shares {
  float *m, *l, *o, *run_m, *run_l, *run_o;
  static size_t Floats(int64_t rows, int head_dim) { return static_cast<size_t>(rows * (4 + 2 * head_dim)); }
  Shares(float* p, int64_t rows, int head_dim)
      : m(p), l(m + rows), o(l + rows), run_m(o + rows * head_dim), run_l(run_m + rows), run_o(run_l + rows) {
    std::fill(run_m, run_m + rows, -std::numeric_limits<float>::infinity());
    std::fill(run_l, run_l + rows * (1 + head_dim), 0.0f);
  }
};

KvFine::Head FineRowsOf(const RunKernels& kernels, const KvView& view, const KvView::Run& run, int64_t kv_head) {
  return kernels.layout.fine().head(HostPointer<uint8_t>(run.fine), view.layer * view.geometry.n_kv_heads + kv_head);
}

// The shares of a run: args but for what the run itself says.
// turned: args.q's queries turned back.
void AttendRun(const KernelTable& table, const RunKernels& kernels, const KvView& view, const KvView::Run& run,
               int64_t kv_head, const float* turned, AttendPageArgs args) {
  if (run.turned) args.q = turned;
  if (run.fine != 0) args.fine = FineRowsOf(kernels, view, run, kv_head);
  const Address stride = static_cast<Address>(kv_head * run.head_stride);
  args.k = HostPointer<uint8_t>(run.k + stride);
  args.v = HostPointer<uint8_t>(run.v + stride);
  args.first = run.first;
  AttendPage(table, run.sealed ? kernels.sealed : kernels.open, args);
}

// Where a page's fine rows lie is read one run before they are, and so fetched two before.
void FetchFineTable(const RunKernels& kernels, const KvView::Run& run) {
  if (!run.sealed) return;
  const uint8_t* section = HostPointer<uint8_t>(run.fine);
  for (size_t i = 0; i < kernels.layout.fine().table_bytes(); i += 64) __builtin_prefetch(section + i);
}

// Has the run's K/V of a head fetched while another run is read.
void FetchNext(const RunKernels& kernels, const KvView& view, const KvView::Run& run, int64_t kv_head,
               AttendPageArgs* args) {
  if (!run.sealed) return;  // open ones are the newest: few, and just written
  const KvFine::Head fine = FineRowsOf(kernels, view, run, kv_head);
  for (int i = 0; i < fine.n; ++i) __builtin_prefetch(fine.codes + static_cast<size_t>(i) * fine.row_bytes);
  const Address stride = static_cast<Address>(kv_head * run.head_stride);
  args->next_k = {HostPointer<uint8_t>(run.k + stride), kernels.layout.keys().bytes()};
  args->next_v = {HostPointer<uint8_t>(run.v + stride), kernels.layout.values().bytes()};
}

constexpr int64_t kBlockTokens = 16;  // query tokens a task in prefill
constexpr int64_t kFewTokens = 16;    // up to so many, tasks are runs and not blocks of tokens

// out[token][head] = O / L for the heads of one KV head.
void WriteOut(const float* l, const float* o, int64_t n_tokens, int group, int head_dim, int64_t out_stride,
              float* out) {
  for (int64_t i = 0; i < n_tokens; ++i) {
    for (int g = 0; g < group; ++g, ++l, o += head_dim) {
      float* to = out + i * out_stride + g * head_dim;
      for (int d = 0; d < head_dim; ++d) to[d] = o[d] / *l;
    }
  }
}

}  // namespace

void CpuBackend::AppendKv(const AttentionShape& shape, std::span<const KvSpan> spans, const float* k, const float* v) {
  const int head_dim = shape.head_dim;
  for (const KvSpan& span : spans) {
    const KvGeometry& g = span.view.geometry;
    const auto put = [&](int64_t i) {  // row i of the span
      const int64_t pos = span.pos + i;
      auto run = span.view.runs.rbegin();  // the newest run that begins at or before this token
      while (run->pos > pos) ++run;
      const int64_t t = pos - run->pos;
      uint16_t halves[kMaxHeadDim];
      for (int h = 0; h < shape.n_kv_heads; ++h) {
        const int64_t row = ((span.first_row + i) * shape.n_kv_heads + h) * head_dim;
        const Address keys = run->k + static_cast<Address>(h * run->head_stride);
        const Address values = run->v + static_cast<Address>(h * run->head_stride);
        if (g.open_k() == KvCode::kF32) {
          PutKey(k + row, t, head_dim, keys);
        } else {
          kernels_.to_half(k + row, head_dim, halves);
          PutKey(halves, t, head_dim, keys);
        }
        if (g.open_v() == KvCode::kF32) {
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

Status CpuBackend::SealPage(const KvGeometry& geometry, Address page, int first, std::span<const float> query_squares,
                            std::vector<uint8_t>* payload) {
  const SealedOffsets sealed(geometry);
  const KvOffsets open(geometry, geometry.page_tokens);
  const KvBlock& keys = sealed.keys();
  const int head_dim = geometry.head_dim, tokens = geometry.page_tokens, n_kv_heads = geometry.n_kv_heads;
  const int64_t n_heads = int64_t{geometry.n_layers} * n_kv_heads;
  payload->assign(sealed.bytes(), 0);
  const auto from = [&](int64_t head, bool of_keys) {  // of an open page's rows, the head counted over all layers
    const int layer = static_cast<int>(head / n_kv_heads);
    const int64_t at = of_keys ? open.Keys(layer, 0) : open.Values(layer, 0);
    return HostPointer<uint16_t>(page + static_cast<Address>(at + head % n_kv_heads * open.head_bytes()));
  };
  const auto rows_of = [&](int64_t head) {  // (tokens, head_dim)
    const uint16_t* tiles = from(head, true);
    std::vector<uint16_t> rows(static_cast<size_t>(tokens * head_dim));
    for (int t = 0; t < tokens; ++t) {
      for (int c = 0; c < head_dim; ++c) rows[static_cast<size_t>(t * head_dim + c)] = tiles[KeyIndex(t, c, head_dim)];
    }
    return rows;
  };
  pool_.Run(n_heads, [&](int64_t head, int) {
    uint8_t* block = payload->data() + head * sealed.head_bytes();
    keys.Encode(rows_of(head).data(), first, block);
    sealed.values().Encode(from(head, false), first, block + keys.bytes());
  });
  if (sealed.fine().rows() == 0) return Status::Ok();

  // Rounding costs a channel's step, squared, times what queries make of it.
  std::vector<float> importance(query_squares.begin(), query_squares.end());
  for (size_t i = 0; i < importance.size(); ++i) {
    const int64_t head = static_cast<int64_t>(i) / head_dim;
    uint16_t scale;
    std::memcpy(&scale,
                payload->data() + head * sealed.head_bytes() + keys.params() + i % static_cast<size_t>(head_dim) * 2,
                2);
    importance[i] = importance[i] * (HalfToFloat(scale) * HalfToFloat(scale));
    if (!(importance[i] >= 0)) importance[i] = 0;  // NaN has no place in an order
  }
  uint8_t* section = payload->data() + sealed.Fine();
  sealed.fine().Choose(importance, head_dim, section);
  pool_.Run(n_heads, [&](int64_t head, int) {
    if (sealed.fine().head(section, head).n == 0) return;
    sealed.fine().Encode(keys, payload->data() + head * sealed.head_bytes(), rows_of(head).data(), first, head,
                         section);
  });
  return Status::Ok();
}

// Prefill: query tokens [first, first + count) of a span, all runs in order.
void CpuBackend::AttendBlock(const AttentionShape& shape, const KvSpan& span, int kv_head, int64_t first, int64_t count,
                             const float* q, float* out, int thread) {
  const RunKernels kernels(kernels_, span.view.geometry);
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
  for (const KvView::Run& run : span.view.runs) {
    if (run.pos > span.pos + first + count - 1) break;
    for (int64_t i = 0; i < count; ++i) {
      visible[i] = static_cast<int32_t>(std::clamp<int64_t>(span.pos + first + i + 1 - run.pos, 0, run.n));
    }
    AttendRun(kernels_, kernels, span.view, run, kv_head, turned_.data() + offset, args);
    kernels_.attend_merge({count * group, shape.head_dim, s.m, s.l, s.o, s.run_m, s.run_l, s.run_o});
  }
  WriteOut(s.run_l, s.run_o, count, group, shape.head_dim, row_stride, out + offset);
}

// Few tokens, as in decode: runs are shared out over the threads, and their shares joined in order.
void CpuBackend::AttendByRuns(const AttentionShape& shape, const KvSpan& span, const float* q, float* out) {
  const RunKernels kernels(kernels_, span.view.geometry);
  const std::vector<KvView::Run>& runs = span.view.runs;
  const int group = shape.n_heads / shape.n_kv_heads, head_dim = shape.head_dim;
  const int64_t n_runs = static_cast<int64_t>(runs.size());
  const int64_t row_stride = static_cast<int64_t>(shape.n_heads) * head_dim;
  const int64_t rows = span.n * group, share = rows * (2 + head_dim);  // floats of one run of one head: m, l, o
  partial_.resize(static_cast<size_t>(n_runs * shape.n_kv_heads * share));

  // Enough tasks to even out what threads do, but long ones: nothing is fetched ahead for a task's first runs.
  const int64_t runs_per_task = std::max<int64_t>(4, n_runs * shape.n_kv_heads / (4 * pool_.n_running()));
  const int64_t tasks_per_head = DivideUp(n_runs, runs_per_task);
  pool_.Run(tasks_per_head * shape.n_kv_heads, [&](int64_t task, int) {
    const int64_t head = task / tasks_per_head, begin = task % tasks_per_head * runs_per_task;
    const int64_t end = std::min(n_runs, begin + runs_per_task);
    for (int64_t i = begin; i < end; ++i) {
      const KvView::Run& run = runs[static_cast<size_t>(i)];
      int32_t visible[kFewTokens];
      for (int64_t t = 0; t < span.n; ++t) {
        visible[t] = static_cast<int32_t>(std::clamp<int64_t>(span.pos + t + 1 - run.pos, 0, run.n));
      }
      AttendPageArgs args;
      args.head_dim = head_dim;
      args.n_tokens = span.n;
      args.group = group;
      args.q = q + span.first_row * row_stride + head * group * head_dim;
      args.q_stride = row_stride;
      args.visible = visible;
      args.m = partial_.data() + (head * n_runs + i) * share;
      args.l = args.m + rows;
      args.o = args.m + 2 * rows;
      if (i + 1 < end) FetchNext(kernels, span.view, runs[static_cast<size_t>(i + 1)], head, &args);
      if (i + 2 < end) FetchFineTable(kernels, runs[static_cast<size_t>(i + 2)]);
      AttendRun(kernels_, kernels, span.view, run, head, turned_.data() + (args.q - q), args);
    }
  });
  pool_.Run(shape.n_kv_heads, [&](int64_t h, int thread) {
    const Shares s(reinterpret_cast<float*>(Scratch(thread)), rows, head_dim);
    for (int64_t i = 0; i < n_runs; ++i) {
      const float* m = partial_.data() + (h * n_runs + i) * share;
      kernels_.attend_merge({rows, head_dim, m, m + rows, m + 2 * rows, s.run_m, s.run_l, s.run_o});
    }
    WriteOut(s.run_l, s.run_o, span.n, group, head_dim, row_stride,
             out + span.first_row * row_stride + h * group * head_dim);
  });
}

// The span's queries turned back over what its window dropped, at their places in turned_.
void CpuBackend::TurnQueries(const AttentionShape& shape, const KvSpan& span, const float* q) {
  const int64_t row_size = static_cast<int64_t>(shape.n_heads) * shape.head_dim;
  turned_.resize(std::max(turned_.size(), static_cast<size_t>((span.first_row + span.n) * row_size)));
  const float* cos_sin = HostPointer<float>(span.turn);
  const int half = shape.head_dim / 2;
  for (int64_t at = span.first_row * row_size; at < (span.first_row + span.n) * row_size; at += shape.head_dim) {
    for (int i = 0; i < half; ++i) {
      const float a = q[at + i], b = q[at + i + half], cos = cos_sin[2 * i], sin = cos_sin[2 * i + 1];
      turned_[static_cast<size_t>(at + i)] = a * cos - b * sin;
      turned_[static_cast<size_t>(at + i + half)] = b * cos + a * sin;
    }
  }
}

Status CpuBackend::Attend(const AttentionShape& shape, Address q, std::span<const KvSpan> spans, Address out) {
  const int group = shape.n_heads / shape.n_kv_heads;
  KVART_RETURN_IF_ERROR(ReserveScratch(Shares::Floats(kBlockTokens * group, shape.head_dim) * sizeof(float)));
  for (const KvSpan& span : spans) {
    if (span.view.dropped > 0) TurnQueries(shape, span, HostPointer<float>(q));
    if (span.n <= kFewTokens) {
      AttendByRuns(shape, span, HostPointer<float>(q), HostPointer<float>(out));
      continue;
    }
    const int64_t blocks = DivideUp(span.n, kBlockTokens);
    pool_.Run(blocks * shape.n_kv_heads, [&](int64_t task, int thread) {
      // The last, the first, the last but one, …: later ones see more, and any run of tasks is to weigh the same.
      const int64_t i = task / shape.n_kv_heads, first = (i % 2 == 0 ? blocks - 1 - i / 2 : i / 2) * kBlockTokens;
      AttendBlock(shape, span, static_cast<int>(task % shape.n_kv_heads), first, std::min(kBlockTokens, span.n - first),
                  HostPointer<float>(q), HostPointer<float>(out), thread);
    });
  }
  return Status::Ok();
}

}  // namespace kvart

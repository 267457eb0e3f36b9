// Every kernel of every table that this CPU can run, on the shapes of Qwen2.5-0.5B, on one core: a new row of a table
// is measured without new code here. Data fits in the caches: the limit is the core's. What memory allows is told by
// `kvart bench`.
#include <benchmark/benchmark.h>

#include <cmath>
#include <random>
#include <string>
#include <vector>

#include "kernels/attend.h"
#include "kernels/kernels.h"

namespace kvart {
namespace {

constexpr int64_t kEmbd = 1024, kFf = 4864;  // whole super-blocks
constexpr int64_t kRows = 512;               // of a matrix: what a thread has in hand, and no more than its cache holds
constexpr int kHeadDim = 64, kPage = 128, kGroup = 7;
constexpr const char* kKvFormats[] = {"f16",      "f32",        "int8",           "int8-g32",  "int4",
                                      "int4-sym", "int4-token", "int4-token-g64", "int4-knorm"};

std::vector<float> Floats(int64_t n) {
  std::mt19937 random(1);
  std::vector<float> values(static_cast<size_t>(n));
  for (float& value : values) value = static_cast<float>(random() >> 8) * 0x1p-23f - 1;
  return values;
}

// Bytes that are a small normal number in every float format, for scales, and any code.
std::vector<uint8_t> Bytes(uint64_t n) {
  std::mt19937 random(2);
  std::vector<uint8_t> bytes(n);
  for (uint8_t& byte : bytes) byte = static_cast<uint8_t>(0x28 | (random() & 7));
  return bytes;
}

void Count(benchmark::State& state, double macs, double bytes) {
  const double n = static_cast<double>(state.iterations());
  if (macs > 0) state.counters["GMAC/s"] = benchmark::Counter(n * macs / 1e9, benchmark::Counter::kIsRate);
  state.counters["GB/s"] = benchmark::Counter(n * bytes / 1e9, benchmark::Counter::kIsRate);
}

// --- Matrix products: n tokens, the bytes are those of the packed weights.

void RunMatmul(benchmark::State& state, const KernelTable& table, const MatmulKernel& kernel, int64_t n) {
  const std::vector<uint8_t> rows = Bytes(kRows * RowBytes(kernel.type, kEmbd));
  std::vector<uint8_t> weights(PackedBytes(kernel.type, kernel.packing, kRows, kEmbd));
  if (kernel.packing == Packing::kRows) {
    weights = rows;
  } else {
    PackX8(kernel.type, rows.data(), kRows, kEmbd, 0, kRows / 8, weights.data());
  }
  const std::vector<float> x = Floats(n * kEmbd);
  std::vector<ActivationBlock> blocks(static_cast<size_t>(n * kEmbd / 32));
  table.quantize(x.data(), n * kEmbd / 32, blocks.data());
  std::vector<float> out(static_cast<size_t>(n * kRows));
  std::vector<uint8_t> scratch(MatmulScratchBytes(kEmbd) + 64);
  MatmulArgs args;
  args.weights = weights.data();
  args.cols = kEmbd;
  args.row_end = kRows;
  args.x = kernel.activations == Activations::kInt8 ? static_cast<const void*>(blocks.data()) : x.data();
  args.n = n;
  args.out = out.data();
  args.out_stride = kRows;
  args.scratch = scratch.data() + (64 - reinterpret_cast<uintptr_t>(scratch.data()) % 64) % 64;
  for (auto _ : state) {
    kernel.run(args);
    benchmark::ClobberMemory();
  }
  Count(state, static_cast<double>(kRows * kEmbd * n), static_cast<double>(weights.size()));
}

// --- Attention over one page: the queries of one KV head, a token; the bytes are those of its keys or values.

struct Page {
  KvBlock keys, values;
  std::vector<uint8_t> k, v;
  std::vector<float> q, o, m, l;
  const float* q_rows[kGroup];
  float* o_rows[kGroup];
  int32_t visible[kGroup];
  alignas(64) float s[kMaxAttendRows][kMaxPageTokens];

  explicit Page(const KvFormats& formats)
      : keys(formats.k, true, kPage, kHeadDim),
        values(formats.v, false, kPage, kHeadDim),
        k(Bytes(keys.bytes())),
        v(Bytes(values.bytes())),
        q(Floats(kGroup * kHeadDim)),
        o(kGroup * kHeadDim),
        m(kGroup),
        l(kGroup) {
    for (int r = 0; r < kGroup; ++r) {
      q_rows[r] = &q[static_cast<size_t>(r * kHeadDim)];
      o_rows[r] = &o[static_cast<size_t>(r * kHeadDim)];
      visible[r] = kPage;
      for (int t = 0; t < kMaxPageTokens; ++t) s[r][t] = 1.0f / static_cast<float>(1 + t);
    }
  }
  const KvBlock* Layout(const KvBlock& block) const { return block.format().is_float() ? nullptr : &block; }
};

constexpr double kPageMacs = double{kGroup} * kPage * kHeadDim;

void RunScore(benchmark::State& state, const ScoreKernel& kernel, const KvFormats& formats) {
  Page page(formats);
  ScoreArgs args;
  args.k = page.k.data();
  args.block = page.Layout(page.keys);
  args.head_dim = kHeadDim;
  args.tokens = kPage;
  args.n_rows = kGroup;
  args.q = page.q_rows;
  args.s = page.s;
  for (auto _ : state) {
    kernel.run(args);
    benchmark::ClobberMemory();
  }
  Count(state, kPageMacs, static_cast<double>(page.k.size()));
}

void RunMix(benchmark::State& state, const MixKernel& kernel, const KvFormats& formats) {
  Page page(formats);
  MixArgs args;
  args.v = page.v.data();
  args.block = page.Layout(page.values);
  args.head_dim = kHeadDim;
  args.n_rows = kGroup;
  args.visible = page.visible;
  args.p = page.s;
  args.o = page.o_rows;
  for (auto _ : state) {
    kernel.run(args);
    benchmark::ClobberMemory();
  }
  Count(state, kPageMacs, static_cast<double>(page.v.size()));
}

void RunSoftmax(benchmark::State& state, const KernelTable& table) {
  Page page(ParseKvFormats("f16", "f16").value());
  SoftmaxArgs args;
  args.n_rows = kGroup;
  args.visible = page.visible;
  args.s = page.s;
  args.m = page.m.data();
  args.l = page.l.data();
  for (auto _ : state) {
    table.softmax(args);
    benchmark::ClobberMemory();
  }
  Count(state, 0, double{kGroup} * kPage * sizeof(float));
}

// As many fine rows as an average head has: what second codes cost beside the score.
void RunRefine(benchmark::State& state, const KernelTable& table) {
  const KvFormats formats = ParseKvFormats("int4", "int4").value();
  Page page(formats);
  constexpr int kRows = kHeadDim / 16;
  const KvFine fine(1, kRows, kPage);
  std::vector<uint8_t> section(fine.bytes());
  fine.Choose(std::vector<float>(kHeadDim, 1.0f), kHeadDim, section.data());
  RefineArgs args;
  args.k = page.k.data();
  args.block = &page.keys;
  args.fine = fine.head(section.data(), 0);
  args.tokens = kPage;
  args.n_rows = kGroup;
  args.q = page.q_rows;
  args.s = page.s;
  for (auto _ : state) {
    table.refine(args);
    benchmark::ClobberMemory();
  }
  Count(state, double{kRows} * kGroup * kPage, static_cast<double>(kRows * fine.row_bytes()));
}

void RunAttend(benchmark::State& state, const KernelTable& table, const KvFormats& formats) {
  Page page(formats);
  const PageKernels kernels = {FindScore(table, formats.k), FindMix(table, formats.v), page.Layout(page.keys),
                               page.Layout(page.values)};
  AttendPageArgs args;
  args.k = page.k.data();
  args.v = page.v.data();
  args.head_dim = kHeadDim;
  args.n_tokens = 1;
  args.group = kGroup;
  args.q = page.q.data();
  args.q_stride = kGroup * kHeadDim;
  args.visible = page.visible;
  args.m = page.m.data();
  args.l = page.l.data();
  args.o = page.o.data();
  for (auto _ : state) {
    AttendPage(table, kernels, args);
    benchmark::ClobberMemory();
  }
  Count(state, 2 * kPageMacs, static_cast<double>(page.k.size() + page.v.size()));
}

void RunMerge(benchmark::State& state, const KernelTable& table) {
  Page page(ParseKvFormats("f16", "f16").value());
  std::vector<float> run_m(kGroup), run_l(kGroup), run_o(kGroup * kHeadDim);
  const AttendMergeArgs args = {kGroup,        kHeadDim,     page.m.data(), page.l.data(),
                                page.o.data(), run_m.data(), run_l.data(),  run_o.data()};
  for (auto _ : state) {
    table.attend_merge(args);
    benchmark::ClobberMemory();
  }
  Count(state, 0, double{2 * kGroup} * kHeadDim * sizeof(float));
}

// --- Rows: the bytes are those that are read.

template <class F>
void RunRows(benchmark::State& state, double bytes, const F& f) {
  for (auto _ : state) {
    f();
    benchmark::ClobberMemory();
  }
  Count(state, 0, bytes);
}

void RegisterRows(const KernelTable& table) {
  const std::string isa = table.name;
  benchmark::RegisterBenchmark((isa + "/rms_norm").c_str(), [&table](benchmark::State& state) {
    const std::vector<float> x = Floats(kEmbd), w = Floats(kEmbd);
    std::vector<float> y(kEmbd);
    RunRows(state, 8.0 * kEmbd, [&] { table.rms_norm(x.data(), w.data(), 1e-6f, 1, kEmbd, y.data()); });
  });
  benchmark::RegisterBenchmark((isa + "/quantize").c_str(), [&table](benchmark::State& state) {
    const std::vector<float> x = Floats(kFf);
    std::vector<ActivationBlock> y(kFf / 32);
    RunRows(state, 4.0 * kFf, [&] { table.quantize(x.data(), kFf / 32, y.data()); });
  });
  benchmark::RegisterBenchmark((isa + "/silu_mul").c_str(), [&table](benchmark::State& state) {
    const std::vector<float> g = Floats(kFf), u = Floats(kFf);
    std::vector<float> y(kFf);
    RunRows(state, 8.0 * kFf, [&] { table.silu_mul(g.data(), u.data(), kFf, y.data()); });
  });
  benchmark::RegisterBenchmark((isa + "/to_half").c_str(), [&table](benchmark::State& state) {
    const std::vector<float> x = Floats(kEmbd);
    std::vector<uint16_t> y(kEmbd);
    RunRows(state, 4.0 * kEmbd, [&] { table.to_half(x.data(), kEmbd, y.data()); });
  });
}

void Register(const KernelTable& table) {
  const std::string isa = table.name;
  for (const MatmulKernel& kernel : table.matmul) {
    for (const int64_t n : {1, 128}) {
      benchmark::RegisterBenchmark(
          (isa + "/" + kernel.name + "/n:" + std::to_string(n)).c_str(),
          [&table, &kernel, n](benchmark::State& state) { RunMatmul(state, table, kernel, n); });
    }
  }
  for (const char* name : kKvFormats) {
    const KvFormats formats = ParseKvFormats(name, name).value();
    for (const ScoreKernel& kernel : table.score) {
      if (kernel.code != formats.k.code || (!formats.k.is_float() && kernel.axis != formats.k.axis)) continue;
      benchmark::RegisterBenchmark((isa + "/" + kernel.name + "/" + name).c_str(),
                                   [&kernel, formats](benchmark::State& state) { RunScore(state, kernel, formats); });
    }
    for (const MixKernel& kernel : table.mix) {
      if (kernel.code != formats.v.code) continue;
      benchmark::RegisterBenchmark((isa + "/" + kernel.name + "/" + name).c_str(),
                                   [&kernel, formats](benchmark::State& state) { RunMix(state, kernel, formats); });
    }
    benchmark::RegisterBenchmark((isa + "/attend_page/" + name).c_str(),
                                 [&table, formats](benchmark::State& state) { RunAttend(state, table, formats); });
  }
  benchmark::RegisterBenchmark((isa + "/refine").c_str(), [&table](benchmark::State& s) { RunRefine(s, table); });
  benchmark::RegisterBenchmark((isa + "/softmax").c_str(), [&table](benchmark::State& s) { RunSoftmax(s, table); });
  benchmark::RegisterBenchmark((isa + "/attend_merge").c_str(), [&table](benchmark::State& s) { RunMerge(s, table); });
  RegisterRows(table);
}

const bool registered = [] {
  for (const KernelTable* table : UsableKernels()) Register(*table);
  return true;
}();

}  // namespace
}  // namespace kvart

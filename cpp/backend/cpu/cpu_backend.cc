#include "backend/cpu/cpu_backend.h"

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <cstring>

#include "base/cpu.h"
#include "quant/quant.h"

namespace kvart {
namespace {

constexpr int kMaxThreads = 256;

// Rows a task: for one token enough work to pay for claiming it (tens of microseconds), for many a tile.
int64_t TaskRows(int64_t n, int64_t rows) {
  if (n > 4) return 32;
  return rows >= 32768 ? 256 : 64;
}

int64_t DivideUp(int64_t a, int64_t b) {
  return (a + b - 1) / b;
}

const CpuMatrix& Cpu(const Matrix& m) {
  return static_cast<const CpuMatrix&>(m);
}

}  // namespace

Result<std::unique_ptr<Backend>> NewCpuBackend(const BackendOptions& options) {
  if (options.n_threads < 0 || options.n_threads > kMaxThreads) {
    return Errorf(StatusCode::kInvalidArgument, "threads: found %d, wanted 1 … %d, or 0 for all usable cores",
                  options.n_threads, kMaxThreads);
  }
  const char* forced = std::getenv("KVART_KERNELS");
  KVART_ASSIGN_OR_RETURN(const KernelTable* kernels, SelectKernels(forced != nullptr ? forced : ""));
  KVART_ASSIGN_OR_RETURN(const ThreadPlan threads, PlanThreads(options.n_threads, options.cpus));
  auto backend = std::make_unique<CpuBackend>(*kernels, threads, options.float_activations);
  if (options.record_inputs) backend->RecordInputs();
  return std::unique_ptr<Backend>(std::move(backend));
}

CpuBackend::CpuBackend(const KernelTable& kernels, const ThreadPlan& threads, bool float_activations)
    : kernels_(kernels),
      activations_(float_activations ? Activations::kFloat : Activations::kInt8),
      pool_(threads),
      scratch_(static_cast<size_t>(pool_.n_threads())) {}

std::vector<InputSquares> CpuBackend::input_squares() const {
  std::vector<InputSquares> all;
  for (const auto& inputs : inputs_) all.push_back(*inputs);
  return all;
}

Status CpuBackend::ReserveScratch(size_t bytes) {
  for (Block& block : scratch_) {
    if (block.bytes() >= bytes) continue;
    KVART_ASSIGN_OR_RETURN(block, Block::Allocate(HostMemory(), bytes));
  }
  return Status::Ok();
}

Result<uint8_t*> CpuBackend::PlaceWeights(size_t bytes) {
  constexpr size_t kChunk = size_t{64} << 20, kLine = 64;
  bytes = (bytes + kLine - 1) / kLine * kLine;
  if (weights_.empty() || weights_.back().bytes() - weights_used_ < bytes) {
    KVART_ASSIGN_OR_RETURN(Block chunk, Block::Allocate(HostMemory(), std::max(kChunk, bytes)));
    weights_.push_back(std::move(chunk));
    weights_used_ = 0;
  }
  uint8_t* place = HostPointer<uint8_t>(weights_.back().address()) + weights_used_;
  weights_used_ += bytes;
  return place;
}

Result<std::unique_ptr<Matrix>> CpuBackend::LoadMatrix(const GgufFile& file, const GgufTensor& tensor, MatrixUse use) {
  const int64_t rows = static_cast<int64_t>(tensor.dims[1]), cols = static_cast<int64_t>(tensor.dims[0]);
  auto matrix = std::make_unique<CpuMatrix>(rows, cols, tensor.type);
  matrix->data_ = tensor.data;
  matrix->set_bytes(tensor.bytes);
  if (use == MatrixUse::kTable) return std::unique_ptr<Matrix>(std::move(matrix));

  if (cols % 32 != 0) {
    return Errorf(StatusCode::kUnsupported, "%s: tensor %s has %lld columns; a multiple of 32 is wanted",
                  file.path().c_str(), tensor.name.c_str(), static_cast<long long>(cols));
  }
  KVART_RETURN_IF_ERROR(ReserveScratch(MatmulScratchBytes(cols)));
  matrix->kernel_ = FindMatmul(kernels_, tensor.type, activations_);
  if (matrix->kernel_->packing == Packing::kX8) {
    const uint64_t bytes = PackedBytes(tensor.type, Packing::kX8, rows, cols);
    KVART_ASSIGN_OR_RETURN(uint8_t * packed, PlaceWeights(bytes));
    const Mapping* mapping = file.MappingOf(tensor);
    // In strips, each dropped from the mapping when done, so that the weights are in memory once, not twice.
    const int64_t groups = DivideUp(rows, 8), strip = std::max<int64_t>(8, (int64_t{8} << 20) / (cols * 8));
    for (int64_t g = 0; g < groups; g += strip) {
      const int64_t end = std::min(groups, g + strip);
      pool_.Run(DivideUp(end - g, 8), [&](int64_t task, int) {
        PackX8(tensor.type, tensor.data, rows, cols, g + task * 8, std::min(end, g + task * 8 + 8), packed);
      });
      const uint64_t row_bytes = RowBytes(tensor.type, tensor.dims[0]);
      const int64_t last_row = std::min(rows, end * 8);
      if (mapping != nullptr) {
        mapping->Drop(tensor.data + static_cast<uint64_t>(g) * 8 * row_bytes,
                      static_cast<uint64_t>(last_row - g * 8) * row_bytes);
      }
    }
    matrix->data_ = packed;
    matrix->set_bytes(bytes);
  }
  if (record_inputs_) {
    inputs_.push_back(std::make_unique<InputSquares>());
    inputs_.back()->matrix = tensor.name;
    inputs_.back()->sums.resize(static_cast<size_t>(cols));
    matrix->inputs_ = inputs_.back().get();
  }
  return std::unique_ptr<Matrix>(std::move(matrix));
}

CpuBackend::Input CpuBackend::Prepare(const float* x, int64_t n, int64_t cols,
                                      std::initializer_list<const Matrix*> users) {
  for (const Matrix* m : users) {
    InputSquares* inputs = m == nullptr ? nullptr : Cpu(*m).inputs_;
    if (inputs == nullptr) continue;
    inputs->Add(x, n, cols, 0, cols);
    inputs->rows += n;
  }
  const bool int8 = std::any_of(users.begin(), users.end(), [](const Matrix* m) {
    return m != nullptr && Cpu(*m).kernel_->activations == Activations::kInt8;
  });
  if (!int8) return {x, nullptr};
  const int64_t blocks = cols / 32;
  quantized_.resize(static_cast<size_t>(n * blocks));
  const auto rows = [&](int64_t i, int64_t count) {
    kernels_.quantize(x + i * cols, count * blocks, quantized_.data() + i * blocks);
  };
  ForRows(n, rows);
  return {x, quantized_.data()};
}

void CpuBackend::Norm(Address weights, float eps, int64_t n, int64_t cols, const float* x) {
  normed_.resize(static_cast<size_t>(n * cols));
  const auto rows = [&](int64_t i, int64_t count) {
    kernels_.rms_norm(x + i * cols, HostPointer<float>(weights), eps, count, cols, normed_.data() + i * cols);
  };
  ForRows(n, rows);
}

void CpuBackend::Multiply(const CpuMatrix& w, const Input& in, int64_t n, int64_t row_begin, int64_t row_end,
                          const float* bias, bool accumulate, float* out, int64_t out_stride, int thread) {
  MatmulArgs args;
  args.weights = w.data_;
  args.cols = w.cols();
  args.row_begin = row_begin;
  args.row_end = row_end;
  args.x = w.kernel_->activations == Activations::kInt8 ? static_cast<const void*>(in.int8) : in.f32;
  args.n = n;
  args.out = out;
  args.out_stride = out_stride;
  args.bias = bias;
  args.accumulate = accumulate;
  args.scratch = Scratch(thread);
  w.kernel_->run(args);
}

void CpuBackend::MultiplyAll(const CpuMatrix& w, const Input& in, int64_t n, const float* bias, bool accumulate,
                             float* out) {
  const int64_t step = TaskRows(n, w.rows());
  pool_.Run(DivideUp(w.rows(), step), [&](int64_t task, int thread) {
    const int64_t begin = task * step, end = std::min(w.rows(), begin + step);
    Multiply(w, in, n, begin, end, bias, accumulate, out + begin, w.rows(), thread);
  });
}

Status CpuBackend::Embed(const Matrix& table, std::span<const int32_t> tokens, Address x) {
  pool_.FollowMask();  // every token begins here
  const CpuMatrix& t = Cpu(table);
  const uint64_t row_bytes = RowBytes(t.type_, static_cast<uint64_t>(t.cols()));
  float* out = HostPointer<float>(x);
  for (const int32_t token : tokens) {
    DecodeRow(t.type_, t.data_ + static_cast<uint64_t>(token) * row_bytes, t.cols(), out);
    out += t.cols();
  }
  return Status::Ok();
}

Status CpuBackend::ProjectQkv(const AttentionWeights& w, const AttentionShape& shape, int64_t n, Address x,
                              Address rope, std::span<const KvSpan> spans, Address q_out) {
  Norm(w.norm, shape.norm_eps, n, shape.n_embd, HostPointer<float>(x));
  const Input in = Prepare(normed_.data(), n, shape.n_embd, {w.q.get(), w.k.get(), w.v.get()});
  const int64_t kv_rows = w.k->rows();
  k_.resize(static_cast<size_t>(n * kv_rows));
  v_.resize(static_cast<size_t>(n * kv_rows));
  float* q = HostPointer<float>(q_out);

  struct Job {
    const CpuMatrix& w;
    const float* bias;
    float* out;
    int64_t tasks;
  };
  const int64_t step = TaskRows(n, 0);
  const auto job = [&](const Matrix& m, Address bias, float* out) {
    return Job{Cpu(m), HostPointer<float>(bias), out, DivideUp(m.rows(), step)};
  };
  const Job jobs[] = {job(*w.q, w.q_bias, q), job(*w.k, w.k_bias, k_.data()), job(*w.v, w.v_bias, v_.data())};
  pool_.Run(jobs[0].tasks + jobs[1].tasks + jobs[2].tasks, [&](int64_t task, int thread) {
    const Job* j = jobs;
    while (task >= j->tasks) task -= j++->tasks;
    const int64_t begin = task * step, end = std::min(j->w.rows(), begin + step);
    Multiply(j->w, in, n, begin, end, j->bias, false, j->out + begin, j->w.rows(), thread);
  });

  // Norms and rotation per head; the query takes the softmax's scale and the change to base 2 along.
  const float* angles = HostPointer<float>(rope);
  const int half = shape.head_dim / 2;
  const float q_scale = kLog2E / std::sqrt(static_cast<float>(shape.head_dim));
  const auto rotate = [&](float* head, Address norm, const float* cos_sin, float scale) {
    if (norm != 0) kernels_.rms_norm(head, HostPointer<float>(norm), shape.norm_eps, 1, shape.head_dim, head);
    for (int i = 0; i < half; ++i) {
      const float a = head[i], b = head[i + half], cos = cos_sin[2 * i], sin = cos_sin[2 * i + 1];
      head[i] = (a * cos - b * sin) * scale;
      head[i + half] = (b * cos + a * sin) * scale;
    }
  };
  ForRows(n, [&](int64_t first, int64_t count) {
    for (int64_t i = first; i < first + count; ++i) {
      const float* cos_sin = angles + i * shape.head_dim;
      for (int h = 0; h < shape.n_heads; ++h)
        rotate(q + (i * shape.n_heads + h) * shape.head_dim, w.q_norm, cos_sin, q_scale);
      for (int h = 0; h < shape.n_kv_heads; ++h) {
        rotate(k_.data() + (i * shape.n_kv_heads + h) * shape.head_dim, w.k_norm, cos_sin, 1.0f);
      }
    }
  });
  AppendKv(shape, spans, k_.data(), v_.data());
  return Status::Ok();
}

Status CpuBackend::ProjectAdd(const Matrix& w, Address bias, int64_t n, Address in, Address x) {
  const Input input = Prepare(HostPointer<float>(in), n, w.cols(), {&w});
  MultiplyAll(Cpu(w), input, n, HostPointer<float>(bias), true, HostPointer<float>(x));
  return Status::Ok();
}

Status CpuBackend::GatedMlp(const MlpWeights& w, float norm_eps, int64_t n, Address x) {
  const int64_t n_embd = w.gate->cols(), n_ff = w.gate->rows();
  Norm(w.norm, norm_eps, n, n_embd, HostPointer<float>(x));
  const Input in = Prepare(normed_.data(), n, n_embd, {w.gate.get(), w.up.get()});
  const CpuMatrix &gate = Cpu(*w.gate), &up = Cpu(*w.up), &down = Cpu(*w.down);

  // Gate, up, SiLU and the quantization of the result in one task: a task's rows are whole blocks of 32.
  const bool int8 = down.kernel_->activations == Activations::kInt8;
  if (int8)
    hidden_int8_.resize(static_cast<size_t>(n * n_ff / 32));
  else
    hidden_.resize(static_cast<size_t>(n * n_ff));
  const int64_t step = n > 4 ? 32 : 64;
  constexpr int64_t kTokens = 128;  // at once, so that the products of a task stay in the cache
  KVART_RETURN_IF_ERROR(
      ReserveScratch(MatmulScratchBytes(n_embd) + sizeof(float) * 2 * static_cast<size_t>(kTokens * step)));
  pool_.Run(DivideUp(n_ff, step), [&](int64_t task, int thread) {
    const int64_t begin = task * step, end = std::min(n_ff, begin + step), rows = end - begin;
    float* g = reinterpret_cast<float*>(Scratch(thread) + MatmulScratchBytes(n_embd));
    float* u = g + kTokens * step;
    for (int64_t i = 0; i < n; i += kTokens) {
      const int64_t count = std::min(kTokens, n - i);
      const Input part = {in.f32 + i * n_embd, in.int8 != nullptr ? in.int8 + i * (n_embd / 32) : nullptr};
      Multiply(gate, part, count, begin, end, nullptr, false, g, rows, thread);
      Multiply(up, part, count, begin, end, nullptr, false, u, rows, thread);
      kernels_.silu_mul(g, u, count * rows, g);
      if (down.inputs_ != nullptr) down.inputs_->Add(g, count, rows, begin, end);
      for (int64_t t = 0; t < count; ++t) {
        const float* h = g + t * rows;
        if (int8)
          kernels_.quantize(h, rows / 32, hidden_int8_.data() + ((i + t) * n_ff + begin) / 32);
        else
          std::copy(h, h + rows, hidden_.data() + (i + t) * n_ff + begin);
      }
    }
  });
  if (down.inputs_ != nullptr) down.inputs_->rows += n;
  MultiplyAll(down, {hidden_.data(), hidden_int8_.data()}, n, nullptr, true, HostPointer<float>(x));
  return Status::Ok();
}

Status CpuBackend::Logits(Address norm, float norm_eps, const Matrix& head, int64_t n, Address x, Address logits) {
  Norm(norm, norm_eps, n, head.cols(), HostPointer<float>(x));
  const Input in = Prepare(normed_.data(), n, head.cols(), {&head});
  MultiplyAll(Cpu(head), in, n, nullptr, false, HostPointer<float>(logits));
  return Status::Ok();
}

}  // namespace kvart

// The CPU backend: composes kernels over a thread pool. May depend on: base … kvcache, backend.h.
// Next for the token: kernels/kernels.h defines every operation down to the bit.
#pragma once

#include <algorithm>
#include <initializer_list>
#include <memory>
#include <span>
#include <string_view>
#include <vector>

#include "backend/backend.h"
#include "base/thread_pool.h"
#include "kernels/kernels.h"

namespace kvart {

// Rows in kernel form: straight from the mapping, or packed into the backend's memory.
class CpuMatrix final : public Matrix {
 public:
  CpuMatrix(int64_t rows, int64_t cols, DType type) : Matrix(rows, cols), type_(type) {}

  DType type_;
  const MatmulKernel* kernel_ = nullptr;
  const uint8_t* data_ = nullptr;
  InputSquares* inputs_ = nullptr;  // where what it is multiplied with is recorded, if it is

  void set_bytes(uint64_t bytes) { bytes_ = bytes; }
};

// One thread at a time. Results do not depend on the number of threads: tasks are cut by rows, heads and pages only.
class CpuBackend : public Backend {
 public:
  CpuBackend(const KernelTable& kernels, const ThreadPlan& threads, bool float_activations);

  std::string_view name() const override { return "cpu"; }
  std::string_view kernels() const override { return kernels_.name; }
  int n_threads() const override { return pool_.n_threads(); }
  int n_running() const override { return pool_.n_running(); }
  std::vector<int> caller_cpus() const override { return pool_.caller_cpus(); }
  Memory& memory() override { return HostMemory(); }
  void RecordInputs() { record_inputs_ = true; }  // of the matrices that are loaded from now on
  std::vector<InputSquares> input_squares() const override;

  Result<std::unique_ptr<Matrix>> LoadMatrix(const GgufFile& file, const GgufTensor& tensor, MatrixUse use) override;
  Status Embed(const Matrix& table, std::span<const int32_t> tokens, Address x) override;
  Status ProjectQkv(const AttentionWeights& w, const AttentionShape& shape, int64_t n, Address x, Address rope,
                    std::span<const KvSpan> spans, Address q) override;
  Status Attend(const AttentionShape& shape, Address q, std::span<const KvSpan> spans, Address out) override;
  Status SealPage(const KvGeometry& geometry, Address page, int first, std::span<const float> query_squares,
                  std::vector<uint8_t>* payload) override;
  Status ProjectAdd(const Matrix& w, Address bias, int64_t n, Address in, Address x) override;
  Status GatedMlp(const MlpWeights& w, float norm_eps, int64_t n, Address x) override;
  Status Logits(Address norm, float norm_eps, const Matrix& head, int64_t n, Address x, Address logits) override;

 private:
  // Activations as a matrix's kernel takes them.
  struct Input {
    const float* f32 = nullptr;             // (n, cols)
    const ActivationBlock* int8 = nullptr;  // (n, cols / 32)
  };
  // f(first, count) over n rows: few on this thread, many shared out.
  template <class F>
  void ForRows(int64_t n, const F& f) {
    constexpr int64_t kRows = 8;
    if (n < kRows) return f(0, n);
    pool_.Run((n + kRows - 1) / kRows, [&](int64_t task, int) { f(task * kRows, std::min(kRows, n - task * kRows)); });
  }
  // Makes the int8 form in quantized_ when one of the matrices wants it.
  Input Prepare(const float* x, int64_t n, int64_t cols, std::initializer_list<const Matrix*> users);
  void Norm(Address weights, float eps, int64_t n, int64_t cols, const float* x);  // into normed_
  void Multiply(const CpuMatrix& w, const Input& in, int64_t n, int64_t row_begin, int64_t row_end, const float* bias,
                bool accumulate, float* out, int64_t out_stride, int thread);
  void MultiplyAll(const CpuMatrix& w, const Input& in, int64_t n, const float* bias, bool accumulate, float* out);
  void AppendKv(const AttentionShape& shape, std::span<const KvSpan> spans, const float* k, const float* v);
  void AttendBlock(const AttentionShape& shape, const KvSpan& span, int kv_head, int64_t first, int64_t count,
                   const float* q, float* out, int thread);
  void AttendByRuns(const AttentionShape& shape, const KvSpan& span, const float* q, float* out);
  void TurnQueries(const AttentionShape& shape, const KvSpan& span, const float* q);
  uint8_t* Scratch(int thread) { return HostPointer<uint8_t>(scratch_[static_cast<size_t>(thread)].address()); }
  Status ReserveScratch(size_t bytes);
  Result<uint8_t*> PlaceWeights(size_t bytes);  // zeroed, aligned to a line; lives as long as the backend

  const KernelTable& kernels_;
  const Activations activations_;
  ThreadPool pool_;
  bool record_inputs_ = false;
  std::vector<std::unique_ptr<InputSquares>> inputs_;  // one a matrix
  std::vector<Block> scratch_;                         // one a thread
  // Packed matrices one behind another: each by itself, few would be large enough for huge pages, which memory is read
  // a fifth faster through.
  std::vector<Block> weights_;
  size_t weights_used_ = 0;  // of the last
  std::vector<float> normed_, k_, v_, partial_, turned_;
  std::vector<ActivationBlock> quantized_, hidden_int8_;
  std::vector<float> hidden_;
};

}  // namespace kvart

// The seam between decoder and hardware: a dozen fused operations over memory that the host may not be able to touch.
// May depend on: base … kvcache. Next for the token: backend/cpu/ computes; model/decoder.cc calls these in order.
//
// Shapes: n rows (tokens, possibly of several sequences); float32 row-major; all Addresses lie in memory().
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string_view>
#include <vector>

#include "backend/input_squares.h"
#include "base/memory.h"
#include "base/status.h"
#include "gguf/gguf.h"
#include "kvcache/sequence.h"

namespace kvart {

// A weight matrix as the backend keeps it; made by LoadMatrix, used only with the backend that made it.
class Matrix {
 public:
  virtual ~Matrix() = default;
  int64_t rows() const { return rows_; }
  int64_t cols() const { return cols_; }
  uint64_t bytes() const { return bytes_; }  // read by one matrix-vector product

 protected:
  Matrix(int64_t rows, int64_t cols) : rows_(rows), cols_(cols) {}
  int64_t rows_, cols_;
  uint64_t bytes_ = 0;
};

// What a matrix is for. A table is looked up row by row and stays where it is.
enum class MatrixUse { kMultiply, kTable };

struct AttentionShape {
  int n_embd = 0, n_heads = 0, n_kv_heads = 0, head_dim = 0;
  float norm_eps = 0;
};

// One layer's attention weights. Vectors are float32 in memory(); address 0 is "none".
struct AttentionWeights {
  Address norm = 0;                      // (n_embd)
  std::unique_ptr<Matrix> q, k, v, out;  // (heads * head_dim, n_embd); out (n_embd, n_heads * head_dim)
  Address q_bias = 0, k_bias = 0, v_bias = 0, out_bias = 0;  // (rows of the matrix)
  Address q_norm = 0, k_norm = 0;                            // (head_dim): qwen3
};

struct MlpWeights {
  Address norm = 0;                        // (n_embd)
  std::unique_ptr<Matrix> gate, up, down;  // (n_ff, n_embd), (n_ff, n_embd), (n_embd, n_ff)
};

// Rows [first_row, first_row + n) of the batch are the tokens at positions pos … of one sequence.
struct KvSpan {
  int64_t first_row = 0;
  int64_t n = 0;
  int64_t pos = 0;
  KvView view;       // of one layer, reserved up to pos + n
  Address turn = 0;  // (head_dim / 2, 2) cos and sin of minus view.dropped positions, where runs are turned
};

class Backend {
 public:
  virtual ~Backend() = default;
  virtual std::string_view name() const = 0;     // "cpu"
  virtual std::string_view kernels() const = 0;  // "avx2"
  virtual int n_threads() const = 0;
  virtual int n_running() const { return n_threads(); }        // of these, what the machine can run at once
  virtual std::vector<int> caller_cpus() const { return {}; }  // where a calling thread belongs; empty: anywhere
  virtual Memory& memory() = 0;
  // Of every matrix that was loaded for multiplying; none unless BackendOptions asked for it.
  virtual std::vector<InputSquares> input_squares() const { return {}; }

  // Takes the tensor's rows over into the form that the kernels want. The file must outlive the matrix.
  virtual Result<std::unique_ptr<Matrix>> LoadMatrix(const GgufFile& file, const GgufTensor& tensor, MatrixUse use) = 0;

  // x[i] = table[tokens[i]]
  virtual Status Embed(const Matrix& table, std::span<const int32_t> tokens, Address x) = 0;

  // h = rms_norm(x); q, k, v = h · weights + bias, then q_norm, k_norm per head, then RoPE (halves of a head rotate
  // against each other); q is scaled by log2(e) / sqrt(head_dim). k and v go to the cache at each span's positions. x:
  // (n, n_embd); rope: (n, head_dim / 2, 2) cos and sin; q: (n, n_heads * head_dim)
  virtual Status ProjectQkv(const AttentionWeights& w, const AttentionShape& shape, int64_t n, Address x, Address rope,
                            std::span<const KvSpan> spans, Address q) = 0;

  // out = softmax(q · kᵀ) · v, each row over its own sequence up to its own position. q, out: (n, n_heads * head_dim)
  virtual Status Attend(const AttentionShape& shape, Address q, std::span<const KvSpan> spans, Address out) = 0;

  // Turns a full open page (laid out as KvOffsets) into the payload of a sealed one (SealedOffsets), on the host.
  // Tokens before `first` stay out of the ranges. query_squares: (n_layers, n_kv_heads, head_dim), what an error in a
  // channel of a key weighs; only for keys that have fine rows. The bytes are the same on every backend.
  virtual Status SealPage(const KvGeometry& geometry, Address page, int first, std::span<const float> query_squares,
                          std::vector<uint8_t>* payload) = 0;

  // x += in · Wᵀ + bias. in: (n, cols); x: (n, rows)
  virtual Status ProjectAdd(const Matrix& w, Address bias, int64_t n, Address in, Address x) = 0;

  // x += down · (silu(gate · h) * (up · h)), h = rms_norm(x). x: (n, n_embd)
  virtual Status GatedMlp(const MlpWeights& w, float norm_eps, int64_t n, Address x) = 0;

  // logits = head · rms_norm(x). x: (n, n_embd); logits: (n, n_vocab)
  virtual Status Logits(Address norm, float norm_eps, const Matrix& head, int64_t n, Address x, Address logits) = 0;
};

struct BackendOptions {
  int n_threads = 0;               // 0: as PlanThreads chooses
  bool float_activations = false;  // matrix products with float32 activations instead of int8 ones
  std::vector<int> cpus;           // where the threads are kept; empty: as PlanThreads chooses
  bool record_inputs = false;      // keeps input_squares(): costs time
};

// name: "cpu", "cuda" or "vulkan". Unsupported when this build does not have it.
Result<std::unique_ptr<Backend>> NewBackend(std::string_view name, const BackendOptions& options);

Result<std::unique_ptr<Backend>> NewCpuBackend(const BackendOptions& options);
Result<std::unique_ptr<Backend>> NewCudaBackend(const BackendOptions& options);
Result<std::unique_ptr<Backend>> NewVulkanBackend(const BackendOptions& options);

}  // namespace kvart

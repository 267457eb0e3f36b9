// The public C++ interface: load a model, run sessions. Everything else in cpp/ is behind it.
// May depend on: all layers but capi. "Follow one token" in cpp/README.md starts here.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "backend/input_squares.h"
#include "base/status.h"
#include "gguf/gguf.h"
#include "sampler/sampler.h"
#include "tokenizer/tokenizer.h"

namespace kvart {

// Called now and then by long work with the part done, 0 … 1, on the calling thread. Returning false cancels the work
// (kCancelled).
using Progress = std::function<bool(double done)>;

struct LoadOptions {
  int n_threads = 0;            // 0: chosen by what the machine has, see PlanThreads in base/cpu.h
  std::vector<int> cpus;        // keep the threads, and callers while they compute, on these CPUs; empty: chosen too
  std::string backend = "cpu";  // "cpu", "cuda", "vulkan"
  bool float_activations =
      false;           // float32 activations in the matrix products instead of int8 ones: slow, the reference
  std::string kv_dir;  // where pages and sessions outlive the process; empty: they are in memory only
  uint64_t kv_budget_bytes =
      0;  // most bytes of sealed pages for each cache format; 0: half of the memory, or no limit in a kv_dir
  bool record_inputs = false;  // keeps Model::input_squares(), from which importances of weights come: costs time
  Progress progress;
};

enum class KvLayout { kPaged, kContiguous };

struct SessionOptions {
  std::string k_format =
      "int4";  // see ParseKvFormats: "f32", "f16", "int8", "int4", "int4-sym", "int4-token", "int4-knorm", …
  std::string v_format = "int4";
  int sinks = 4;  // first tokens that stay half precision where the rest becomes integers
  KvLayout layout = KvLayout::kPaged;
  int64_t ctx = 0;    // most tokens the session may hold; 0: the length the model is trained for. Nothing is reserved.
  bool cache = true;  // false: every step recomputes the whole text, to prove what the cache does
  int chunk = 512;    // most tokens computed at once in prefill
  bool in_memory = false;  // pages in memory only, although the model has a kv_dir; not together with a name
  std::string name;        // a durable session of this name in the model's kv_dir; empty: gone with the process
  int64_t window = 0;  // sliding window: beyond it only the sinks and the newest `window` tokens, in whole pages, stay;
                       // 0: off, a full ctx is an error
  int64_t draft = 0;   // most tokens to guess ahead, from what followed the last few where they stood before, and to
                       // compute in one pass; the text is the same as without
};

// What opening a durable session found.
struct Resumed {
  bool existed = false;
  int64_t tokens = 0;          // ids that were journalled
  int64_t from_pages = 0;      // of these, tokens whose K/V lie in sealed pages
  int64_t from_open_page = 0;  // tokens whose K/V a clean close had kept
  int64_t to_compute = 0;      // the rest: computed by whatever call comes next
  std::string note;  // for people, when something was not as expected: other numerics, bytes cut; empty otherwise
};

struct ModelInfo {
  std::string name;  // general.name, or the file's name
  std::string architecture;
  std::string path;
  uint64_t file_bytes = 0;
  int n_layers = 0, n_embd = 0, n_heads = 0, n_kv_heads = 0, head_dim = 0, n_ff = 0;
  int32_t n_vocab = 0;
  int64_t n_ctx_train = 0;
  double rope_base = 0;
  std::string rope_scaling;  // "none", "linear", "ntk", "yarn"
  bool tied_head = false;
  uint64_t weight_bytes_per_token = 0;  // bytes of weights that one decode step reads
  std::string kernels;                  // "scalar", "avx2", …: the kernel class in use
  std::string backend;
  int n_threads = 0;
  int n_running = 0;  // of the threads, what the machine can run at once; the others sleep
};

// Sums over the life of a model or of a session.
struct Stats {
  uint64_t prefill_tokens = 0, decode_tokens = 0;
  double prefill_seconds = 0, decode_seconds = 0;
  uint64_t computed_positions = 0;                   // positions whose K/V were computed
  uint64_t recomputed_positions = 0;                 // of these, positions that had been computed before
  uint64_t reused_positions = 0;                     // positions whose pages were found in the store
  uint64_t drafted_tokens = 0, accepted_tokens = 0;  // tokens guessed ahead, and of them those that were then drawn
  uint64_t kv_bytes = 0;                             // K/V memory held now
  uint64_t kv_used_bytes = 0;                        // of it, bytes of tokens that are there
  uint64_t kv_budget_bytes = 0;                      // of a model: most bytes of sealed pages; 0: no limit
  uint64_t store_lookups = 0, store_hits = 0;        // pages looked for in the store, and found
  uint64_t pool_requests = 0, pool_hits = 0;         // slots wanted for pages, and how many came from the pool
  uint64_t evictions = 0, damaged_pages = 0;         // pages given away for room; pages whose checksum failed
  bool store_writable = true;  // false: another process writes to the store; our new pages are private
  double bits_per_value = 0;   // of a session's sealed pages, headers and padding counted; of its floats otherwise
  double load_seconds = 0;     // of a model
  uint64_t logits_hash = 0;    // over every sampled step: equal runs have equal hashes
};

class Session;

// Shared by its sessions. Every call may come from any thread: calls on one model wait for each other.
// After fork() in the child every call is refused: the worker threads are not there.
class Model : public std::enable_shared_from_this<Model> {
 public:
  static Result<std::shared_ptr<Model>> Load(const std::string& path, const LoadOptions& options);
  ~Model();

  const ModelInfo& info() const;
  const Tokenizer& tokenizer() const;
  const GgufFile& file() const;

  Result<std::unique_ptr<Session>> NewSession(const SessionOptions& options);

  // A session from a file that Save wrote; its formats are the file's. Corrupt, or Unsupported when it is another
  // model's: the message names both.
  Result<std::unique_ptr<Session>> LoadSession(const std::string& path, const SessionOptions& options);

  // Teacher-forced logits of every position, out: (ids.size(), n_vocab) float32, in a session of its own with these
  // options.
  Status Logits(std::span<const int32_t> ids, const SessionOptions& options, float* out, const Progress& progress);

  Stats stats() const;

  // What each weight matrix has been multiplied with so far; empty unless LoadOptions::record_inputs was set.
  std::vector<InputSquares> input_squares() const;

  struct Impl;
  Impl& impl() { return *impl_; }

 private:
  Model();
  std::unique_ptr<Impl> impl_;
};

// A text and its K/V. Keeps its model alive. Calls from several threads wait for each other.
class Session {
 public:
  ~Session();

  // Adds tokens and computes their K/V in chunks. On cancel or error the session is as it was before the call.
  // Full (kFull) when they do not fit in ctx; InvalidArgument for ids out of range. No ids: nothing happens.
  Status Append(std::span<const int32_t> ids, const Progress& progress);

  // The same, and the logits of each of these tokens, out: (ids.size(), n_vocab) float32: what evaluation wants.
  Status AppendLogits(std::span<const int32_t> ids, float* out, const Progress& progress);

  // Draws the next token and adds it; its K/V are computed by whatever call comes next. kFull at the end of the
  // context, InvalidArgument in an empty session.
  Result<int32_t> Next(Sampler& sampler);

  // Logits after the last token, out: (n_vocab).
  Status LastLogits(float* out);

  Status Rewind(int64_t n_tokens);  // keeps the first n_tokens
  Result<std::unique_ptr<Session>> Fork();

  // Ends a durable session cleanly: its open page is kept, so that opening it again computes nothing. Of no effect on
  // others. Every later call is refused.
  Status Close();
  const Resumed& resumed() const;

  // The whole session in one file: formats, ids, and all K/V as they are kept.
  Status Save(const std::string& path);

  // Replaces what the session holds by these tokens and K/V: k and v for each layer (n_kv_heads, ids.size(), head_dim),
  // keys after RoPE. Float formats only, nothing is shared: the K/V need not be what the model would compute.
  Status ImportKv(std::span<const int32_t> ids, std::span<const std::vector<float>> k,
                  std::span<const std::vector<float>> v);

  std::vector<int32_t> tokens() const;
  int64_t size() const;  // tokens().size()
  int64_t ctx() const;
  const SessionOptions& options() const;
  Stats stats() const;

  // K/V of all cached tokens as floats: k and v (n_kv_heads, size, head_dim) for one layer, keys after RoPE. The K/V of
  // a token that Next has just added are computed first. Dropped by a window: zeros.
  Status ReadKv(int layer, std::vector<float>* k, std::vector<float>* v);
  // A sealed page's bytes of one layer as they are kept (FORMAT.md): its KV heads' key and value blocks; and, of all
  // layers, its fine rows. NotFound when the page is not sealed.
  Status ReadRawPage(int64_t page, int layer, std::vector<uint8_t>* bytes, std::vector<uint8_t>* fine);

  struct Impl;
  explicit Session(std::unique_ptr<Impl> impl);
  Impl& impl() { return *impl_; }

 private:
  std::unique_ptr<Impl> impl_;
};

}  // namespace kvart

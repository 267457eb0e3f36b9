// What Model and Session share inside: the lock, the decoder, the counters. May depend on: all to the left.
#pragma once

#include <atomic>
#include <chrono>
#include <mutex>
#include <new>
#include <optional>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include "base/cpu.h"
#include "engine/engine.h"
#include "engine/fingerprint.h"
#include "kvcache/journal.h"
#include "kvcache/pool.h"
#include "kvcache/store.h"
#include "model/decoder.h"

namespace kvart {

// A mutex that knows whether the calling thread holds it: user code that runs inside a call, a progress callback or
// what the garbage collector frees meanwhile, must not wait for itself.
class OwnedMutex {
 public:
  void lock() {
    mutex_.lock();
    owner_.store(std::this_thread::get_id());
  }
  void unlock() {
    owner_.store({});
    mutex_.unlock();
  }
  bool mine() const { return owner_.load() == std::this_thread::get_id(); }

 private:
  std::mutex mutex_;
  std::atomic<std::thread::id> owner_{};
};

struct Model::Impl {
  std::shared_ptr<const GgufFile> file;
  std::unique_ptr<const Tokenizer> tokenizer;
  std::unique_ptr<Decoder> decoder;
  ModelInfo info;
  Stats stats;
  int64_t process = 0;       // who loaded the model
  mutable OwnedMutex mutex;  // held by every call that computes or touches the cache

  LoadOptions options;

  // Where the pages of a geometry come from; the store only where it seals. One for each in use; kept alive by its
  // pages.
  struct Cache {
    std::shared_ptr<PagePool> pool;
    std::shared_ptr<PageStore> store;
    int64_t window = 0;
    bool in_memory = false;
    Digest fingerprint{};  // all zeros where nothing outlives the process
  };
  std::vector<Cache> caches;

  Result<Cache> CacheFor(const KvGeometry& geometry, const SessionOptions& session);
  Result<Digest> FingerprintOf(const KvGeometry& geometry, int64_t window);
  std::string Numerics(const KvGeometry& geometry, int64_t window) const;
  Result<std::shared_ptr<PageStore>> NewStore(const KvGeometry& geometry, const Digest& fingerprint,
                                              bool in_memory) const;
  Result<Digest> WeightsHash();

  std::optional<Digest> weights_hash;  // once somebody has asked
  // Refuses calls in a child of fork(), and from inside another call of the same thread.
  Status CheckProcess() const;
  // For what only looks: the lock, unless this thread has it already.
  std::unique_lock<OwnedMutex> LockToLook() const {
    return mutex.mine() ? std::unique_lock<OwnedMutex>() : std::unique_lock<OwnedMutex>(mutex);
  }
  bool InChild() const;
};

struct Session::Impl {
  std::shared_ptr<Model> model;
  SessionOptions options;
  KvGeometry geometry;
  int64_t ctx = 0;
  std::vector<int32_t> tokens;
  std::unique_ptr<KvSequence> kv;  // K/V of the first kv->size() tokens; less than a page short of tokens between calls
  std::vector<float> logits;       // (n_vocab) after the last token, when logits_valid
  bool logits_valid = false;
  std::vector<int32_t> draft;       // guessed tokens whose K/V lie behind those of tokens; see session_draft.cc
  size_t draft_taken = 0;           // of these, how many were drawn
  int64_t draft_length = 0;         // most to guess next time: as many as have come true lately
  std::vector<float> draft_logits;  // (1 + draft.size(), n_vocab)
  int64_t computed_high = 0;        // positions below this have been computed at some time
  Stats stats;
  std::unique_ptr<Journal> journal;  // of a durable session
  Resumed resumed;
  bool closed = false;

  Model::Impl& shared() { return model->impl(); }
  Status CheckUsable();  // not closed, not in a child of fork()
  Status Resume();
  Status Compute(const Progress& progress, float* all_logits);
  Status ComputeLast();
  Status ComputeLastAndDraft();
  Status TakeFromDraft();
  Status DropDraft();
  Result<std::unique_ptr<KvSequence>> NewSequence();
  StoreIdentity Identity(const Digest& fingerprint) const;
};

// Seconds since construction.
class Stopwatch {
 public:
  double seconds() const { return std::chrono::duration<double>(std::chrono::steady_clock::now() - start_).count(); }

 private:
  std::chrono::steady_clock::time_point start_ = std::chrono::steady_clock::now();
};

// The boundary: nothing is thrown past it.
template <class F>
auto Guarded(const F& f) -> decltype(f()) {
  try {
    return f();
  } catch (const std::bad_alloc&) {
    return Status(StatusCode::kOutOfMemory, "out of memory");
  } catch (const std::length_error&) {
    return Status(StatusCode::kOutOfMemory, "out of memory: a size beyond what the system can address");
  }
}

}  // namespace kvart

// A backend whose memory the host cannot touch: every block is inaccessible except inside Read, Write, Copy and the
// operations, so a decoder that reached past the seam would crash. The arithmetic is the CPU backend's.
#pragma once

#include <sys/mman.h>

#include <map>

#include "backend/cpu/cpu_backend.h"

namespace kvart {

class LockedMemory final : public Memory {
 public:
  Result<Address> Allocate(size_t bytes) override {
    void* p = mmap(nullptr, bytes == 0 ? 1 : bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (p == MAP_FAILED) return Errorf(StatusCode::kOutOfMemory, "refused %zu bytes", bytes);
    blocks_[AddressOf(p)] = bytes == 0 ? 1 : bytes;
    if (depth_ > 0) Protect(PROT_READ | PROT_WRITE);
    return AddressOf(p);
  }
  void Free(Address address, size_t bytes) override {
    munmap(HostPointer<void>(address), bytes == 0 ? 1 : bytes);
    blocks_.erase(address);
  }
  Status Write(Address to, const void* from, size_t bytes) override {
    const Open open(*this);
    return HostMemory().Write(to, from, bytes);
  }
  Status Read(void* to, Address from, size_t bytes) const override {
    const Open open(*this);
    return HostMemory().Read(to, from, bytes);
  }
  Status Copy(Address to, Address from, size_t bytes) override {
    const Open open(*this);
    return HostMemory().Copy(to, from, bytes);
  }

  // While one lives, the memory can be touched.
  class Open {
   public:
    explicit Open(const LockedMemory& memory) : memory_(memory) {
      if (memory_.depth_++ == 0) memory_.Protect(PROT_READ | PROT_WRITE);
    }
    ~Open() {
      if (--memory_.depth_ == 0) memory_.Protect(PROT_NONE);
    }

   private:
    const LockedMemory& memory_;
  };

 private:
  void Protect(int protection) const {
    for (const auto& [address, bytes] : blocks_) mprotect(HostPointer<void>(address), bytes, protection);
  }
  std::map<Address, size_t> blocks_;
  mutable int depth_ = 0;
};

class LockedBackend final : public CpuBackend {
 public:
  explicit LockedBackend(const KernelTable& kernels, const BackendOptions& options)
      : CpuBackend(kernels, ThreadPlan::Anywhere(options.n_threads), options.float_activations) {}
  std::string_view name() const override { return "locked"; }
  Memory& memory() override { return memory_; }
  int operations() const { return operations_; }

  Status Embed(const Matrix& table, std::span<const int32_t> tokens, Address x) override {
    return Opened([&] { return CpuBackend::Embed(table, tokens, x); });
  }
  Status ProjectQkv(const AttentionWeights& w, const AttentionShape& shape, int64_t n, Address x, Address rope,
                    std::span<const KvSpan> spans, Address q) override {
    return Opened([&] { return CpuBackend::ProjectQkv(w, shape, n, x, rope, spans, q); });
  }
  Status Attend(const AttentionShape& shape, Address q, std::span<const KvSpan> spans, Address out) override {
    return Opened([&] { return CpuBackend::Attend(shape, q, spans, out); });
  }
  Status SealPage(const KvGeometry& geometry, Address page, int first, std::span<const float> query_squares,
                  std::vector<uint8_t>* payload) override {
    return Opened([&] { return CpuBackend::SealPage(geometry, page, first, query_squares, payload); });
  }
  Status ProjectAdd(const Matrix& w, Address bias, int64_t n, Address in, Address x) override {
    return Opened([&] { return CpuBackend::ProjectAdd(w, bias, n, in, x); });
  }
  Status GatedMlp(const MlpWeights& w, float norm_eps, int64_t n, Address x) override {
    return Opened([&] { return CpuBackend::GatedMlp(w, norm_eps, n, x); });
  }
  Status Logits(Address norm, float norm_eps, const Matrix& head, int64_t n, Address x, Address logits) override {
    return Opened([&] { return CpuBackend::Logits(norm, norm_eps, head, n, x, logits); });
  }

 private:
  template <class F>
  Status Opened(const F& f) {
    const LockedMemory::Open open(memory_);
    ++operations_;
    return f();
  }
  LockedMemory memory_;
  int operations_ = 0;
};

}  // namespace kvart

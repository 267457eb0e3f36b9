// Both layouts against a plain list: append, rewind, fork in random order; sharing and copying of pages; shapes.
#include "kvcache/sequence.h"

#include <gtest/gtest.h>

#include <cstring>
#include <random>
#include <string>

namespace kvart {
namespace {

KvGeometry Small(KvCode k = KvCode::kF32, KvCode v = KvCode::kF32) {
  KvGeometry g;
  g.n_layers = 2;
  g.n_kv_heads = 2;
  g.head_dim = 8;
  g.page_tokens = 16;
  g.formats = {{k}, {v}};
  return g;
}

// A value that tells everything about where it belongs.
float Mark(int32_t token, int layer, int head, int c, bool key) {
  return static_cast<float>(token) + 1000.0f * static_cast<float>(((layer * 2 + head) * 8 + c) * 2 + (key ? 1 : 0));
}

struct Cache {
  std::unique_ptr<KvSequence> kv;
  std::vector<int32_t> plain;  // the model: what should be there

  void Append(int n, std::mt19937& rng) {
    ASSERT_TRUE(kv->Reserve(n).ok());
    const KvGeometry& g = kv->geometry();
    for (int i = 0; i < n; ++i) plain.push_back(static_cast<int32_t>(rng() % 1000));
    const std::span<const int32_t> added = std::span(plain).last(static_cast<size_t>(n));
    for (int layer = 0; layer < g.n_layers; ++layer) {
      const KvView view = kv->View(layer, static_cast<int64_t>(plain.size()));
      for (int64_t t = kv->size(); t < static_cast<int64_t>(plain.size()); ++t) {
        for (int head = 0; head < g.n_kv_heads; ++head) {
          for (int c = 0; c < g.head_dim; ++c) {
            At(view, head, t, c, true) = Mark(plain[static_cast<size_t>(t)], layer, head, c, true);
            At(view, head, t, c, false) = Mark(plain[static_cast<size_t>(t)], layer, head, c, false);
          }
        }
      }
    }
    kv->Commit(added);
  }

  static float& At(const KvView& view, int head, int64_t t, int c, bool key) {
    const KvGeometry& g = view.geometry;
    const KvView::Run& run = view.runs[static_cast<size_t>(t / g.page_tokens)];
    const Address base = (key ? run.k : run.v) + static_cast<Address>(head * run.head_stride);
    const int64_t slot = t % g.page_tokens;
    return HostPointer<float>(base)[key ? KeyIndex(slot, c, g.head_dim) : ValueIndex(slot, c, g.head_dim)];
  }

  void Check() const {
    const KvGeometry& g = kv->geometry();
    ASSERT_EQ(kv->size(), static_cast<int64_t>(plain.size()));
    for (int layer = 0; layer < g.n_layers; ++layer) {
      const KvView view = kv->View(layer, kv->size());
      for (int64_t t = 0; t < kv->size(); ++t) {
        for (int head = 0; head < g.n_kv_heads; ++head) {
          for (int c = 0; c < g.head_dim; ++c) {
            ASSERT_EQ(At(view, head, t, c, true), Mark(plain[static_cast<size_t>(t)], layer, head, c, true));
            ASSERT_EQ(At(view, head, t, c, false), Mark(plain[static_cast<size_t>(t)], layer, head, c, false));
          }
        }
      }
    }
  }
};

class Layouts : public testing::TestWithParam<bool> {
 protected:
  Cache New() {
    Cache cache;
    if (GetParam()) {
      pool_ = PagePool::New(Small(), HostMemory()).value();
      cache.kv = NewPagedSequence(pool_, nullptr, 0).value();
    } else {
      cache.kv = NewContiguousSequence(Small(), HostMemory()).value();
    }
    return cache;
  }
  std::shared_ptr<PagePool> pool_;
};
INSTANTIATE_TEST_SUITE_P(Both, Layouts, testing::Bool(),
                         [](const auto& p) { return p.param ? "Paged" : "Contiguous"; });

TEST_P(Layouts, BehaveLikeAPlainList) {
  std::mt19937 rng(7);
  std::vector<Cache> caches;
  caches.push_back(New());
  for (int step = 0; step < 1500; ++step) {
    Cache& cache = caches[rng() % caches.size()];
    switch (rng() % 4) {
      case 0:
      case 1: cache.Append(1 + static_cast<int>(rng() % 40), rng); break;
      case 2: {
        const size_t keep = rng() % (cache.plain.size() + 1);
        ASSERT_TRUE(cache.kv->Rewind(static_cast<int64_t>(keep)).ok());
        cache.plain.resize(keep);
        break;
      }
      default: {
        Cache fork{cache.kv->Fork().value(), cache.plain};
        if (caches.size() < 6)
          caches.push_back(std::move(fork));
        else
          caches[rng() % caches.size()] = std::move(fork);
      }
    }
    if (step % 10 == 0) {
      for (const Cache& c : caches) c.Check();
    }
  }
}

TEST_P(Layouts, AReservationThatIsNotCommittedLeavesNothing) {
  std::mt19937 rng(1);
  Cache cache = New();
  cache.Append(20, rng);
  ASSERT_TRUE(cache.kv->Reserve(100).ok());
  cache.Check();
  cache.Append(3, rng);
  cache.Check();
}

TEST_P(Layouts, RewindBeyondTheEndIsRefused) {
  std::mt19937 rng(1);
  Cache cache = New();
  cache.Append(5, rng);
  EXPECT_EQ(cache.kv->Rewind(6).code(), StatusCode::kInvalidArgument);
  EXPECT_EQ(cache.kv->Rewind(-1).code(), StatusCode::kInvalidArgument);
  EXPECT_NE(cache.kv->Rewind(6).message().find("0 … 5"), std::string::npos);
  cache.Check();
}

TEST(Paged, ForksShareFullPagesAndCopyOnlyTheOneWrittenTo) {
  std::mt19937 rng(3);
  auto pool = PagePool::New(Small(), HostMemory()).value();
  Cache a{NewPagedSequence(pool, nullptr, 0).value(), {}};
  a.Append(16 * 3 + 5, rng);
  EXPECT_EQ(pool->pages_in_use(), 4u);
  Cache b{a.kv->Fork().value(), a.plain};
  EXPECT_EQ(pool->pages_in_use(), 4u);
  b.Append(1, rng);
  EXPECT_EQ(pool->pages_in_use(), 5u);  // the part-full one
  a.Append(1, rng);
  EXPECT_EQ(pool->pages_in_use(), 5u);  // now a's alone
  a.Check();
  b.Check();
  a.kv.reset();
  EXPECT_EQ(pool->pages_in_use(), 4u);
  b.Check();
}

TEST(Paged, OpenPagesGrowWithTheirText) {
  std::mt19937 rng(3);
  KvGeometry g = Small();
  g.page_tokens = 128;
  auto pool = PagePool::New(g, HostMemory()).value();
  Cache a{NewPagedSequence(pool, nullptr, 0).value(), {}};
  uint64_t before = 0;
  for (const int64_t size : {3, 16, 17, 33, 64, 65, 128, 129, 200}) {
    a.Append(static_cast<int>(size - a.kv->size()), rng);
    a.Check();
    EXPECT_GE(pool->bytes_in_use(), before);
    before = pool->bytes_in_use();
    const int64_t tail = size % 128 == 0 ? 128 : size % 128;
    const int64_t capacity = tail <= 16 ? 16 : tail <= 32 ? 32 : tail <= 64 ? 64 : 128;
    EXPECT_EQ(before, KvOffsets(g, (size - tail) + capacity).bytes()) << size;
  }
}

TEST(Paged, PagesAreReused) {
  std::mt19937 rng(3);
  auto pool = PagePool::New(Small(), HostMemory()).value();
  for (int i = 0; i < 50; ++i) {
    Cache a{NewPagedSequence(pool, nullptr, 0).value(), {}};
    a.Append(40, rng);
  }
  EXPECT_EQ(pool->pages_in_use(), 0u);
  EXPECT_EQ(pool->allocations(), 150u);
  EXPECT_EQ(pool->reuses(), 147u);
}

class FailingMemory final : public Memory {
 public:
  int left = 0;
  Result<Address> Allocate(size_t bytes) override {
    if (left-- <= 0) return Errorf(StatusCode::kOutOfMemory, "refused %zu bytes", bytes);
    return HostMemory().Allocate(bytes);
  }
  void Free(Address address, size_t bytes) override { HostMemory().Free(address, bytes); }
  Status Write(Address to, const void* from, size_t bytes) override { return HostMemory().Write(to, from, bytes); }
  Status Read(void* to, Address from, size_t bytes) const override { return HostMemory().Read(to, from, bytes); }
  Status Copy(Address to, Address from, size_t bytes) override { return HostMemory().Copy(to, from, bytes); }
};

TEST(Memory, AFailedReservationChangesNothing) {
  std::mt19937 rng(3);
  FailingMemory memory;
  memory.left = 3;
  Cache cache{NewPagedSequence(PagePool::New(Small(), memory).value(), nullptr, 0).value(), {}};
  cache.Append(20, rng);
  const Status status = cache.kv->Reserve(100);
  EXPECT_EQ(status.code(), StatusCode::kOutOfMemory);
  cache.Check();
  memory.left = 100;
  cache.Append(100, rng);
  cache.Check();
}

TEST(Paged, APageWhoseTableOfFineRowsIsNotOneIsNotTakenOver) {
  KvGeometry g;
  g.n_layers = 2, g.n_kv_heads = 1, g.head_dim = 64;
  g.formats = ParseKvFormats("int4", "int4").value();
  const SealedOffsets offsets(g);
  ASSERT_GT(offsets.fine().rows(), 0);
  for (const bool good : {true, false}) {
    StoreOptions options;
    options.budget_bytes = uint64_t{1} << 24;
    options.payload_bytes = offsets.bytes();
    options.k_format = options.v_format = "int4";
    const std::shared_ptr<PageStore> store = PageStore::InMemory(g, options).value();
    const std::shared_ptr<PagePool> pool = PagePool::New(g, HostMemory()).value();
    std::vector<uint8_t> payload(offsets.bytes());
    offsets.fine().Choose(std::vector<float>(128, 1.0f), g.head_dim, payload.data() + offsets.Fine());
    if (!good) payload[offsets.Fine() + 6] = 64;  // a channel that the head has not
    const std::vector<int32_t> ids(128, 7);
    const auto writer = NewPagedSequence(pool, store, 0).value(), reader = NewPagedSequence(pool, store, 0).value();
    ASSERT_TRUE(writer->Reserve(128).ok());
    writer->Commit(ids);
    ASSERT_TRUE(writer->Seal(payload).ok());
    EXPECT_EQ(reader->Adopt(ids).value(), good ? 128 : 0);
    const auto pieces = writer->Export().value();
    EXPECT_EQ(NewPagedSequence(pool, store, 0).value()->Restore(ids, pieces).ok(), good);
  }
}

TEST(Geometry, FineRowsFillWhatTheSlotsRoundingLeaves) {
  const auto rows = [](int layers, int heads, int head_dim, const char* k) {
    KvGeometry g;
    g.n_layers = layers, g.n_kv_heads = heads, g.head_dim = head_dim;
    g.formats = ParseKvFormats(k, "int4").value();
    KvGeometry without = g;
    without.formats.k.group = 128;
    const auto slot = [](const KvGeometry& of) { return SlotBytes(128, SealedOffsets(of).bytes()); };
    const int n = FineRows(g), channels = layers * heads * head_dim;
    if (n > 0) {
      EXPECT_TRUE(n >= channels / 128 && n <= channels / 16) << n;
      EXPECT_TRUE(slot(g) == slot(without) || n == channels / 128) << n;
    }
    return n;
  };
  EXPECT_EQ(rows(24, 2, 64, "int4"), 169);   // Qwen2.5-0.5B: a channel in 18
  EXPECT_EQ(rows(28, 2, 128, "int4"), 106);  // 1.5B: in 68
  for (int layers = 1; layers < 70; layers += 3) {
    for (const int heads : {1, 2, 8}) {
      for (const int head_dim : {8, 64, 128, 256}) rows(layers, heads, head_dim, "int4");
    }
  }
  for (const char* name : {"int4-g128", "int4-g32", "int4-sym", "int4-token", "int4-knorm", "int8", "f16"}) {
    EXPECT_EQ(rows(24, 2, 64, name), 0) << name;
  }
}

TEST(Geometry, IsCheckedAndNamed) {
  KvGeometry g = Small();
  g.head_dim = 12;
  EXPECT_NE(PagePool::New(g, HostMemory()).status().message().find("head_dim is 12"), std::string::npos);
  g = Small();
  g.page_tokens = 20;
  EXPECT_FALSE(PagePool::New(g, HostMemory()).ok());
  g = Small();
  g.sinks = 17;
  EXPECT_NE(PagePool::New(g, HostMemory()).status().message().find("17 sinks"), std::string::npos);
  g = Small(KvCode::kInt4, KvCode::kInt4);
  EXPECT_EQ(NewContiguousSequence(g, HostMemory()).status().code(), StatusCode::kUnsupported);
  EXPECT_EQ(Small().ToString(), "2 layers, 2 KV heads of 8, pages of 16 tokens, k=f32, v=f32");
  EXPECT_EQ(KvOffsets(Small(KvCode::kF16, KvCode::kF32), 16).token_bytes(), 2u * 2 * 8 * (2 + 4));
}

}  // namespace
}  // namespace kvart

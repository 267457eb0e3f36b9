// Pages for the tests of the store: tiny ones, whose bytes follow from their names.
#pragma once

#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <vector>

#include "base/fake_fs.h"
#include "base/hash.h"
#include "kvcache/page_file.h"
#include "kvcache/store.h"

namespace kvart {

constexpr int kTestPageTokens = 8;
constexpr uint64_t kTestPayload = 200, kTestSlotBytes = 16384;

inline KvGeometry TestGeometry() {
  KvGeometry g;
  g.n_layers = 1;
  g.n_kv_heads = 1;
  g.head_dim = 8;
  g.page_tokens = kTestPageTokens;
  return g;
}

// budget: in slots; 0: none.
inline StoreOptions TestOptions(FileSystem* files, uint64_t budget = 0) {
  StoreOptions o;
  o.budget_bytes = budget * kTestSlotBytes;
  o.payload_bytes = kTestPayload;
  o.k_format = "int4";
  o.v_format = "int4";
  o.sinks = 2;
  o.fingerprint.fill(0xab);
  o.files = files;
  o.sync_ms = 0;
  return o;
}

struct TestPage {
  SlotHead head;
  std::vector<uint8_t> payload;
};

// What page `number` of text `text` holds; sinks: the record that goes with its first page.
inline TestPage MakePage(int text, int number = 0, bool sinks = false) {
  TestPage page;
  SlotHead& head = page.head;
  for (int n = 0; n <= number; ++n) {
    head.ids.clear();
    for (int i = 0; i < kTestPageTokens; ++i) head.ids.push_back(text * 1000 + n * kTestPageTokens + i);
    head.previous = head.name;
    head.name = NameOfPage(head.previous, head.ids);
  }
  head.kind = sinks ? SlotKind::kSinks : SlotKind::kPage;
  head.page = static_cast<uint32_t>(number);
  if (sinks) head.ids.clear();
  page.payload.resize(sinks ? 64 : kTestPayload);
  uint32_t state = Crc32c(head.name.data(), head.name.size()) + static_cast<uint32_t>(sinks);
  for (uint8_t& byte : page.payload) byte = static_cast<uint8_t>((state = state * 1664525u + 1013904223u) >> 24);
  return page;
}

using StorePtr = std::shared_ptr<PageStore>;
using RefPtr = std::shared_ptr<const SlotRef>;

inline Result<RefPtr> Put(PageStore& store, const TestPage& page) {
  return store.Put(page.head, page.payload);
}
inline bool Same(const RefPtr& ref, const TestPage& page) {
  const auto bytes = ref->payload();
  return std::vector<uint8_t>(bytes.begin(), bytes.end()) == page.payload;
}

// Whether the page is there. What is there is what was put: anything else fails the test.
inline bool Holds(PageStore& store, const TestPage& page) {
  const Result<RefPtr> found = store.Find(page.head);
  EXPECT_TRUE(found.ok()) << found.status().message();
  if (!found.ok() || found.value() == nullptr) return false;
  EXPECT_TRUE(Same(found.value(), page)) << "a wrong page was served";
  return true;
}

inline StorePtr OpenStore(FileSystem* files, uint64_t budget = 0, const std::string& directory = "/kv") {
  Result<StorePtr> store = PageStore::Open(directory, TestGeometry(), TestOptions(files, budget));
  EXPECT_TRUE(store.ok()) << store.status().message();
  return store.ok() ? store.value() : nullptr;
}

constexpr const char* kTestPages = "/kv/abababababababab.pages";
constexpr const char* kTestIndex = "/kv/abababababababab.index";

}  // namespace kvart

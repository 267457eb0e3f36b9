// What a page store promises: in memory and in a file alike, then what only a file can do. Faults are in
// store_fault_test.cc.
#include "kvcache/store.h"

#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <filesystem>
#include <functional>
#include <thread>

#include "kvcache/store_testing.h"

namespace kvart {
namespace {

class Store : public testing::TestWithParam<bool> {
 protected:
  StorePtr Make(uint64_t budget = 0) {
    if (GetParam()) return OpenStore(&files_, budget);
    return PageStore::InMemory(TestGeometry(), TestOptions(&files_, budget)).value();
  }
  FakeFiles files_;
};

TEST_P(Store, FindsWhatWasPutAndNothingElse) {
  const StorePtr store = Make();
  const TestPage page = MakePage(1, 2), sinks = MakePage(1, 0, true), first = MakePage(1, 0);
  EXPECT_FALSE(Holds(*store, page));
  const RefPtr ref = Put(*store, page).value();
  EXPECT_TRUE(Same(ref, page));
  EXPECT_EQ(reinterpret_cast<uintptr_t>(ref->payload().data()) % 64, 0u);
  EXPECT_TRUE(Holds(*store, page));
  EXPECT_FALSE(Holds(*store, sinks));
  ASSERT_TRUE(Put(*store, sinks).ok());
  EXPECT_FALSE(Holds(*store, first));  // the sinks have its name
  ASSERT_TRUE(Put(*store, first).ok());
  EXPECT_TRUE(Holds(*store, first));
  EXPECT_TRUE(Holds(*store, sinks));
  for (const auto& change : std::vector<std::function<void(SlotHead&)>>{
           [](SlotHead& h) { ++h.ids[3]; }, [](SlotHead& h) { h.previous[31] ^= 1; },
           [](SlotHead& h) { h.name[20] ^= 1; }, [](SlotHead& h) { h.name[0] ^= 1; }, [](SlotHead& h) { ++h.page; },
           [](SlotHead& h) { h.kind = SlotKind::kSinks, h.ids.clear(); }}) {
    SlotHead other = page.head;
    change(other);
    EXPECT_EQ(store->Find(other).value(), nullptr);
  }
}

TEST_P(Store, PutsAPageOnce) {
  const StorePtr store = Make();
  const TestPage page = MakePage(1);
  const RefPtr a = Put(*store, page).value(), b = Put(*store, page).value();
  EXPECT_EQ(a->payload().data(), b->payload().data());
  EXPECT_EQ(store->stats().puts, 1u);
  EXPECT_EQ(store->stats().slots_in_use, 1u);
}

TEST_P(Store, RefusesWhatDoesNotFit) {
  const StorePtr store = Make();
  TestPage page = MakePage(1);
  page.payload.pop_back();
  EXPECT_EQ(Put(*store, page).status().code(), StatusCode::kInvalidArgument);
  page = MakePage(1);
  page.head.ids.pop_back();
  EXPECT_EQ(Put(*store, page).status().code(), StatusCode::kInvalidArgument);
  page = MakePage(1);
  page.head.kind = SlotKind::kFree;
  EXPECT_EQ(Put(*store, page).status().code(), StatusCode::kInvalidArgument);
  TestPage sinks = MakePage(1, 0, true);
  sinks.payload.resize(kTestSlotBytes);
  EXPECT_EQ(Put(*store, sinks).status().code(), StatusCode::kInvalidArgument);
}

TEST_P(Store, EvictsTheLongestUnusedAndNeverWhatIsHeld) {
  const StorePtr store = Make(4);
  std::vector<RefPtr> held;
  for (int text = 0; text < 4; ++text) {
    ++files_.now;
    const RefPtr ref = Put(*store, MakePage(text)).value();
    if (text == 0) held.push_back(ref);
  }
  ++files_.now;
  EXPECT_TRUE(Holds(*store, MakePage(1)));  // 2 is the oldest now that nobody holds
  ++files_.now;
  ASSERT_TRUE(Put(*store, MakePage(10)).ok());
  EXPECT_FALSE(Holds(*store, MakePage(2)));
  for (const int text : {0, 1, 3, 10}) {
    const RefPtr ref = store->Find(MakePage(text).head).value();
    ASSERT_NE(ref, nullptr);
    held.push_back(ref);
  }
  EXPECT_EQ(Put(*store, MakePage(11)).status().code(), StatusCode::kNoSpace);
  const StoreStats stats = store->stats();
  EXPECT_EQ(stats.slots, 4u);
  EXPECT_EQ(stats.slots_in_use, 4u);
  EXPECT_EQ(stats.evictions, 1u);
  held.pop_back();
  EXPECT_TRUE(Put(*store, MakePage(11)).ok());
  for (const int text : {0, 1, 3, 11}) EXPECT_TRUE(Holds(*store, MakePage(text)));
}

TEST_P(Store, EvictsTheEndOfATextFirst) {
  const StorePtr store = Make(4);
  for (int number = 0; number < 4; ++number) ASSERT_TRUE(Put(*store, MakePage(1, number)).ok());
  for (int text = 2; text < 4; ++text) {
    files_.now += 10;
    ASSERT_TRUE(Put(*store, MakePage(text)).ok());
  }
  for (int number = 0; number < 4; ++number) EXPECT_EQ(Holds(*store, MakePage(1, number)), number < 2);
}

TEST_P(Store, WithinASecondTheOrderOfUseCounts) {
  const StorePtr store = Make(4);
  for (int text = 0; text < 20; ++text) {
    ASSERT_TRUE(Put(*store, MakePage(text)).ok());
    EXPECT_TRUE(Holds(*store, MakePage(std::max(text - 1, 0))));
  }
}

TEST_P(Store, AHundredTextsStayWithinTheBudget) {
  const StorePtr store = Make(10);
  for (int text = 0; text < 100; ++text) {
    files_.now += 1;
    std::vector<RefPtr> session;
    for (int number = 0; number < 8; ++number) session.push_back(Put(*store, MakePage(text, number)).value());
    for (int number = 0; number < 8; ++number)
      EXPECT_TRUE(Same(session[static_cast<size_t>(number)], MakePage(text, number)));
  }
  const StoreStats stats = store->stats();
  EXPECT_EQ(stats.slots, 10u);
  EXPECT_EQ(stats.slots_in_use, 0u);
  EXPECT_EQ(stats.puts, 800u);
  EXPECT_GE(stats.pool_hits, 790u);
}

TEST_P(Store, ARefOutlivesTheStore) {
  StorePtr store = Make();
  const RefPtr ref = Put(*store, MakePage(1)).value();
  store = nullptr;
  EXPECT_TRUE(Same(ref, MakePage(1)));
}

INSTANTIATE_TEST_SUITE_P(MemoryAndFile, Store, testing::Bool(),
                         [](const auto& info) { return info.param ? "File" : "Memory"; });

// ---- In a file.

TEST(FileStore, FindsEverythingAfterReopening) {
  FakeFiles files;
  StorePtr store = OpenStore(&files);
  EXPECT_TRUE(store->stats().writable);
  for (int text = 0; text < 50; ++text) ASSERT_TRUE(Put(*store, MakePage(text)).ok());
  ASSERT_TRUE(Put(*store, MakePage(0, 0, true)).ok());
  store = OpenStore(&files);  // the old one is still open, so this one reads
  EXPECT_FALSE(store->stats().writable);
  store = nullptr;
  store = OpenStore(&files);
  EXPECT_TRUE(store->stats().writable);
  for (int text = 0; text < 50; ++text) EXPECT_TRUE(Holds(*store, MakePage(text)));
  EXPECT_TRUE(Holds(*store, MakePage(0, 0, true)));
  EXPECT_EQ(store->stats().hits, 51u);
  const uint64_t slots = store->stats().slots;
  ASSERT_TRUE(Put(*store, MakePage(60)).ok());
  EXPECT_EQ(store->stats().slots, slots);  // goes on where the other left off
  for (int text = 0; text < 50; ++text) EXPECT_TRUE(Holds(*store, MakePage(text)));
}

TEST(FileStore, OpeningReadsNoMoreFromAFullFile) {
  FakeFiles files;
  for (int round = 0; round < 2; ++round) {
    StorePtr store = OpenStore(&files);
    for (int text = 0; text < 300; ++text) ASSERT_TRUE(Put(*store, MakePage(text)).ok());
    store = nullptr;
    const int64_t before = files.operations;
    store = OpenStore(&files);
    EXPECT_EQ(files.operations, before) << "opening writes nothing";
    EXPECT_TRUE(Holds(*store, MakePage(299)));
  }
}

TEST(FileStore, RefusesWhatDoesNotFitByName) {
  FakeFiles files;
  ASSERT_TRUE(Put(*OpenStore(&files), MakePage(1)).ok());
  const auto refusal = [&](const KvGeometry& g, const StoreOptions& o) {
    const auto store = PageStore::Open("/kv", g, o);
    return store.ok() ? "opened" : store.status().message();
  };
  const auto has = [](const std::string& text, const std::string& part) {
    return text.find(part) != std::string::npos;
  };
  KvGeometry g = TestGeometry();
  g.n_layers = 3;
  EXPECT_TRUE(has(refusal(g, TestOptions(&files)), "layers: 1; wanted 3"));
  g = TestGeometry();
  g.n_kv_heads = 2;
  EXPECT_TRUE(has(refusal(g, TestOptions(&files)), "KV heads: 1; wanted 2"));
  g = TestGeometry();
  g.head_dim = 128;
  EXPECT_TRUE(has(refusal(g, TestOptions(&files)), "head_dim: 8; wanted 128"));
  g = TestGeometry();
  g.page_tokens = 16;
  EXPECT_TRUE(has(refusal(g, TestOptions(&files)), "tokens a page: 8; wanted 16"));
  StoreOptions o = TestOptions(&files);
  o.sinks = 4;
  EXPECT_TRUE(has(refusal(TestGeometry(), o), "sinks: 2; wanted 4"));
  o = TestOptions(&files);
  o.k_format = "int8";
  EXPECT_TRUE(has(refusal(TestGeometry(), o), "keys in int4; wanted int8"));
  o = TestOptions(&files);
  o.v_format = "f16";
  EXPECT_TRUE(has(refusal(TestGeometry(), o), "values in int4; wanted f16"));
  o = TestOptions(&files);
  o.payload_bytes = 20000;
  EXPECT_TRUE(has(refusal(TestGeometry(), o), "slots of 16384 bytes; wanted 32768"));
  o = TestOptions(&files);
  o.fingerprint[31] = 1;  // the same file name
  EXPECT_TRUE(has(refusal(TestGeometry(), o), "pages of the model and numerics abab"));
  o = TestOptions(&files);
  o.k_format = std::string(40, 'x');
  EXPECT_TRUE(has(refusal(TestGeometry(), o), "wanted a name of 1 to 31 bytes"));

  const std::vector<uint8_t> good = files.Contents(kTestPages);
  const auto patched = [&](size_t at, uint8_t value) {
    std::vector<uint8_t> bytes = good;
    bytes[at] = value;
    files.SetContents(kTestPages, bytes);
    return refusal(TestGeometry(), TestOptions(&files));
  };
  EXPECT_TRUE(has(patched(0, 'X'), "has magic 58564152545047"));
  EXPECT_TRUE(has(patched(8, 9), "format version 9; wanted version 1"));
  EXPECT_TRUE(has(patched(12, 1), "byte order"));
  EXPECT_TRUE(has(patched(30, 1), "header checksum"));
  files.SetContents(kTestPages, {good.begin(), good.begin() + 5000});
  EXPECT_TRUE(
      has(refusal(TestGeometry(), TestOptions(&files)), "has 5000 bytes; wanted a page store's header of 16384"));
  files.SetContents(kTestPages, {'G', 'G', 'U', 'F', 1, 2, 3, 4});
  EXPECT_TRUE(has(refusal(TestGeometry(), TestOptions(&files)), "has 8 bytes; wanted"));
  EXPECT_EQ(files.Contents(kTestPages).size(), 8u) << "what is not ours was left alone";
}

TEST(FileStore, ASecondOpenerReadsAndKeepsItsOwnPagesInMemory) {
  FakeFiles files;
  const StorePtr writer = OpenStore(&files), reader = OpenStore(&files);
  ASSERT_TRUE(Put(*writer, MakePage(1)).ok());
  EXPECT_TRUE(Holds(*reader, MakePage(1)));
  const auto before = files.Contents(kTestPages);
  ASSERT_TRUE(Put(*reader, MakePage(2)).ok());
  EXPECT_TRUE(Holds(*reader, MakePage(2)));
  EXPECT_FALSE(Holds(*writer, MakePage(2)));
  EXPECT_EQ(files.Contents(kTestPages), before);
  EXPECT_FALSE(reader->stats().writable);
  for (int text = 10; text < 400; ++text)
    ASSERT_TRUE(Put(*writer, MakePage(text)).ok());  // the file and the index grow meanwhile
  for (int text = 10; text < 400; ++text) EXPECT_TRUE(Holds(*reader, MakePage(text)));
}

TEST(FileStore, AReaderBecomesTheWriterWhenThatOneIsGone) {
  FakeFiles files;
  StorePtr first = OpenStore(&files, 4);
  const StorePtr second = OpenStore(&files, 4);
  ASSERT_TRUE(Put(*first, MakePage(1)).ok());
  ASSERT_TRUE(Put(*second, MakePage(2)).ok());
  RefPtr shared = second->Find(MakePage(1).head).value(), mine = second->Find(MakePage(2).head).value();
  first = nullptr;
  EXPECT_FALSE(second->stats().writable);
  ASSERT_TRUE(Put(*second, MakePage(3)).ok());
  EXPECT_TRUE(second->stats().writable);
  for (int text = 10; text < 30; ++text) {
    ++files.now;
    ASSERT_TRUE(Put(*second, MakePage(text)).ok());
  }
  EXPECT_TRUE(Same(shared, MakePage(1)));
  EXPECT_TRUE(Same(mine, MakePage(2)));
  const StorePtr third = OpenStore(&files, 4);
  EXPECT_FALSE(third->stats().writable);
  EXPECT_TRUE(Holds(*third, MakePage(29)));
  EXPECT_TRUE(Holds(*third, MakePage(1)));
  EXPECT_FALSE(Holds(*third, MakePage(2)));
  shared = nullptr;
  for (int text = 30; text < 34; ++text) {
    ++files.now;
    ASSERT_TRUE(Put(*second, MakePage(text)).ok());
  }
  EXPECT_FALSE(Holds(*third, MakePage(1)));
}

TEST(FileStore, NoSlotIsGivenAwayWhileAnyReaderHoldsIt) {
  FakeFiles files;
  const StorePtr writer = OpenStore(&files, 3);
  for (int text = 0; text < 3; ++text) ASSERT_TRUE(Put(*writer, MakePage(text)).ok());
  StorePtr reader = OpenStore(&files, 3);
  RefPtr held = reader->Find(MakePage(1).head).value();
  ASSERT_NE(held, nullptr);
  for (int text = 10; text < 30; ++text) {
    ++files.now;
    ASSERT_TRUE(Put(*writer, MakePage(text)).ok());
    EXPECT_TRUE(Same(held, MakePage(1)));
  }
  EXPECT_TRUE(Holds(*writer, MakePage(1)));
  held = nullptr;
  for (int text = 30; text < 50; ++text) {
    ++files.now;
    ASSERT_TRUE(Put(*writer, MakePage(text)).ok());
  }
  EXPECT_FALSE(Holds(*reader, MakePage(1)));
  EXPECT_TRUE(Holds(*reader, MakePage(49)));
  std::vector<RefPtr> all;
  for (int text = 47; text < 50; ++text) all.push_back(reader->Find(MakePage(text).head).value());
  EXPECT_EQ(Put(*writer, MakePage(60)).status().code(), StatusCode::kNoSpace);
}

TEST(FileStore, AReaderThatKnewASlotChecksItAnew) {
  FakeFiles files;
  const StorePtr writer = OpenStore(&files, 1), reader = OpenStore(&files, 1);
  for (int text = 0; text < 10; ++text) {
    ++files.now;
    ASSERT_TRUE(Put(*writer, MakePage(text % 3)).ok());
    EXPECT_TRUE(Holds(*reader, MakePage(text % 3)));
    EXPECT_FALSE(Holds(*reader, MakePage((text + 1) % 3)));
  }
  ++files.now;
  ASSERT_TRUE(Put(*writer, MakePage(7)).ok());
  files.Flip(kTestPages, 16384 + 1024 + 50, 4);
  EXPECT_FALSE(Holds(*reader, MakePage(7))) << "the payload was not looked at";
}

TEST(FileStore, LastUseSurvivesReopening) {
  FakeFiles files;
  StorePtr store = OpenStore(&files, 3);
  for (int text = 0; text < 3; ++text) {
    files.now += 100;
    ASSERT_TRUE(Put(*store, MakePage(text)).ok());
  }
  files.now += 100;
  EXPECT_TRUE(Holds(*store, MakePage(0)));
  store = nullptr;
  store = OpenStore(&files, 3);
  ASSERT_TRUE(Put(*store, MakePage(9)).ok());
  EXPECT_TRUE(Holds(*store, MakePage(0)));
  EXPECT_FALSE(Holds(*store, MakePage(1)));
}

TEST(FileStore, GoesOnWhenItsFileIsRemoved) {
  FakeFiles files;
  StorePtr store = OpenStore(&files);
  const RefPtr ref = Put(*store, MakePage(1)).value();
  ASSERT_TRUE(files.Remove(kTestPages).ok() && files.Remove(kTestIndex).ok());
  for (int text = 2; text < 300; ++text) ASSERT_TRUE(Put(*store, MakePage(text)).ok());
  EXPECT_TRUE(Holds(*store, MakePage(1)));
  EXPECT_TRUE(Holds(*store, MakePage(299)));
  EXPECT_TRUE(Same(ref, MakePage(1)));
  const StorePtr fresh = OpenStore(&files);  // not the old one, whatever index lies there
  EXPECT_TRUE(fresh->stats().writable);
  EXPECT_FALSE(Holds(*fresh, MakePage(1)));
}

TEST(FileStore, AFileCutOffUnderAReaderIsAnError) {
  FakeFiles files;
  const StorePtr store = OpenStore(&files);
  ASSERT_TRUE(Put(*store, MakePage(1)).ok());
  EXPECT_TRUE(store->Check().ok());
  files.Cut(kTestPages, 20000);
  EXPECT_EQ(store->Check().code(), StatusCode::kCorrupt);
  EXPECT_EQ(store->Find(MakePage(1).head).status().code(), StatusCode::kCorrupt);
  EXPECT_EQ(Put(*store, MakePage(2)).status().code(), StatusCode::kCorrupt);
}

TEST(FileStore, ADamagedPageIsAMissAndItsSlotIsUsedAgain) {
  FakeFiles files;
  StorePtr store = OpenStore(&files, 1);
  ASSERT_TRUE(Put(*store, MakePage(1)).ok());
  store = nullptr;
  files.Flip(kTestPages, 16384 + 1024 + 50, 4);
  store = OpenStore(&files, 1);
  {
    const StorePtr reader = OpenStore(&files, 1);
    EXPECT_FALSE(Holds(*reader, MakePage(1)));
    EXPECT_EQ(reader->stats().damaged, 1u);
  }
  EXPECT_FALSE(Holds(*store, MakePage(1)));
  EXPECT_EQ(store->stats().damaged, 1u);
  EXPECT_EQ(store->stats().slots_free, 1u);
  ASSERT_TRUE(Put(*store, MakePage(1)).ok());
  EXPECT_TRUE(Holds(*store, MakePage(1)));
  EXPECT_EQ(store->stats().evictions, 0u);
}

// ---- On the real file system.

class RealStore : public testing::Test {
 protected:
  RealStore() : directory_(testing::TempDir() + "kvart_store_" + std::to_string(getpid())) {
    std::filesystem::remove_all(directory_);
  }
  ~RealStore() override { std::filesystem::remove_all(directory_); }
  StorePtr Open(uint64_t budget = 0, int sync_ms = 0) {
    StoreOptions o = TestOptions(nullptr, budget);
    o.sync_ms = sync_ms;
    auto store = PageStore::Open(directory_, TestGeometry(), o);
    EXPECT_TRUE(store.ok()) << store.status().message();
    return store.ok() ? store.value() : nullptr;
  }
  const std::string directory_;
};

TEST_F(RealStore, FourThreads) {
  const StorePtr store = Open(40, 5), reader = Open(40, 5);
  std::vector<std::thread> threads;
  for (int thread = 0; thread < 4; ++thread) {
    threads.emplace_back([&, thread] {
      std::vector<RefPtr> held(5);
      std::vector<TestPage> pages(5);
      for (int i = 0; i < 400; ++i) {
        const size_t at = static_cast<size_t>(i % 5);
        const TestPage page = MakePage((i * 7 + thread * 3) % 60);
        EXPECT_TRUE(held[at] == nullptr || Same(held[at], pages[at]));
        held[at] = thread == 3 ? reader->Find(page.head).value() : Put(*store, page).value();
        pages[at] = page;
        EXPECT_TRUE(held[at] == nullptr || Same(held[at], page));
        EXPECT_TRUE(i % 50 != 0 || (store->Sync().ok() && store->Check().ok()));
        (void)store->stats();
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(store->stats().slots_in_use, 0u);
  EXPECT_EQ(store->stats().damaged, 0u);
}

TEST_F(RealStore, AForkedChildIsHarmless) {
  StorePtr store = Open(2, 1);
  StorePtr reader = Open(2);
  RefPtr ref = Put(*store, MakePage(1)).value(), shared = reader->Find(MakePage(1).head).value();
  const pid_t child = fork();
  if (child == 0) {
    const bool refused = store->Find(MakePage(1).head).status().code() == StatusCode::kUnsupported &&
                         Put(*store, MakePage(2)).status().code() == StatusCode::kUnsupported && !store->Sync().ok();
    const bool readable = Same(ref, MakePage(1));
    ref = shared = nullptr;
    store = reader = nullptr;
    _exit(refused && readable ? 0 : 1);
  }
  int status = 1;
  waitpid(child, &status, 0);
  EXPECT_EQ(status, 0);
  ref = nullptr;
  for (int text = 5; text < 15; ++text) ASSERT_TRUE(Put(*store, MakePage(text)).ok());
  EXPECT_TRUE(Same(shared, MakePage(1)));  // the child did not give the parent's lock back
  EXPECT_TRUE(Holds(*store, MakePage(1)));
  EXPECT_TRUE(store->Sync().ok());
}

TEST_F(RealStore, TwoProcesses) {
  const StorePtr store = Open(2);
  ASSERT_TRUE(Put(*store, MakePage(1)).ok());
  int to_child[2], to_parent[2];
  ASSERT_EQ(pipe(to_child) + pipe(to_parent), 0);
  const pid_t child = fork();
  if (child == 0) {
    const auto mine = PageStore::Open(directory_, TestGeometry(), TestOptions(nullptr, 2));
    const RefPtr ref = mine.ok() ? mine.value()->Find(MakePage(1).head).value() : nullptr;
    char go = ref != nullptr && !mine.value()->stats().writable;
    (void)!write(to_parent[1], &go, 1);
    (void)!read(to_child[0], &go, 1);
    _exit(Same(ref, MakePage(1)) ? 0 : 1);
  }
  char ready = 0;
  ASSERT_EQ(read(to_parent[0], &ready, 1), 1);
  EXPECT_EQ(ready, 1);
  for (int text = 5; text < 15; ++text) ASSERT_TRUE(Put(*store, MakePage(text)).ok());
  EXPECT_TRUE(Holds(*store, MakePage(1)));
  ASSERT_EQ(write(to_child[1], "x", 1), 1);
  int status = 1;
  waitpid(child, &status, 0);
  EXPECT_EQ(status, 0);
  for (const int fd : {to_child[0], to_child[1], to_parent[0], to_parent[1]}) close(fd);
}

TEST_F(RealStore, BackgroundSyncRunsByItself) {
  const StorePtr store = Open(0, 1);
  for (int text = 0; text < 20; ++text) {
    ASSERT_TRUE(Put(*store, MakePage(text)).ok());
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  EXPECT_TRUE(store->Sync().ok());
}

TEST_F(RealStore, OffsetsBeyondFourGigabytes) {
  StorePtr store = Open();
  ASSERT_TRUE(Put(*store, MakePage(1)).ok());
  store = nullptr;
  const std::string path = directory_ + "/abababababababab.pages";
  const uint64_t slots = (uint64_t{5} << 30) / kTestSlotBytes;
  if (truncate(path.c_str(), static_cast<off_t>(16384 + slots * kTestSlotBytes)) != 0)
    GTEST_SKIP() << "no sparse files here";
  struct stat info {};
  if (stat(path.c_str(), &info) != 0 || info.st_blocks > 1 << 20) GTEST_SKIP() << "no sparse files here";
  {
    const auto file = SystemFiles().Open(path, OpenMode::kWrite).value();
    const uint64_t used = slots - 3;
    ASSERT_TRUE(file->Write(kUsedHintOffset, &used, sizeof used).ok());
  }
  store = Open();
  EXPECT_EQ(store->stats().slots, slots);
  const RefPtr first = store->Find(MakePage(1).head).value();
  ASSERT_NE(first, nullptr);
  for (int text = 2; text < 8; ++text)
    EXPECT_TRUE(Same(Put(*store, MakePage(text)).value(), MakePage(text)));  // and grows
  EXPECT_TRUE(Same(first, MakePage(1)));
  EXPECT_GT(store->stats().slots, slots);
  const StorePtr reader = Open();
  for (int text = 1; text < 8; ++text) EXPECT_TRUE(Holds(*reader, MakePage(text)));
}

}  // namespace
}  // namespace kvart

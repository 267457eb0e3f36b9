// The store's writer is stopped at every operation, by a kill and by a power cut; bits flip, files end early, disks
// fill. What must hold: a page that is served is the page that was put; after a kill what was put is there; after a
// power cut what was synced is there.
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <filesystem>
#include <map>
#include <set>

#include "kvcache/directory.h"
#include "kvcache/store_testing.h"

namespace kvart {
namespace {

struct Progress {
  std::set<int> put, synced;
};

// Puts ten texts and syncs after every third, in a store of few slots when there is a budget: then texts take each
// other's slots.
Progress Work(FakeFiles& files, uint64_t budget) {
  Progress done;
  const auto store = PageStore::Open("/kv", TestGeometry(), TestOptions(&files, budget));
  if (!store.ok()) return done;
  for (int text = 0; text < 10; ++text) {
    ++files.now;
    const bool put = Put(*store.value(), MakePage(text)).ok();
    if (put && (files.stop_at < 0 || files.operations <= files.stop_at))
      done.put.insert(text);  // who is dead has put nothing
    if (text % 3 == 2 && store.value()->Sync().ok()) done.synced = done.put;
  }
  return done;
}

// After the restart: nothing wrong is served, all of `must` is there, and the store works. Returns how many pages were
// lost.
int CheckStore(FakeFiles& files, uint64_t budget, const std::set<int>& must, const std::string& what) {
  SCOPED_TRACE(what);
  StorePtr store = OpenStore(&files, budget);
  if (store == nullptr) return 0;
  int lost = 0;
  for (int text = 0; text < 10; ++text) {
    const bool there = Holds(*store, MakePage(text));
    lost += !there;
    EXPECT_TRUE(there || !must.contains(text)) << "text " << text << " is lost";
  }
  for (int text = 0; text < 10; ++text) {
    ++files.now;
    EXPECT_TRUE(Put(*store, MakePage(text)).ok());
    EXPECT_TRUE(Holds(*store, MakePage(text)));
  }
  EXPECT_TRUE(budget == 0 || store->stats().slots <= budget);
  store = nullptr;
  store = OpenStore(&files, budget);
  EXPECT_TRUE(Holds(*store, MakePage(9)));
  return lost;
}

class Faults : public testing::TestWithParam<int> {};  // slots: 0 no budget

TEST_P(Faults, KilledAtEveryOperation) {
  const uint64_t budget = static_cast<uint64_t>(GetParam());
  FakeFiles whole;
  Work(whole, budget);
  const int64_t n = whole.operations;
  ASSERT_GT(n, 40);
  for (int64_t stop = 0; stop < n; ++stop) {
    FakeFiles files;
    files.random.seed(static_cast<unsigned>(stop));
    files.stop_at = stop;
    const Progress done = Work(files, budget);
    files.Reboot();
    CheckStore(files, budget, budget == 0 ? done.put : std::set<int>{}, "killed at " + std::to_string(stop));
    if (testing::Test::HasFailure()) return;
  }
}

TEST_P(Faults, PowerCutAtEveryOperation) {
  const uint64_t budget = static_cast<uint64_t>(GetParam());
  FakeFiles whole;
  Work(whole, budget);
  int lost = 0;
  for (int64_t stop = 0; stop <= whole.operations; ++stop) {
    for (unsigned seed = 0; seed < 8; ++seed) {
      FakeFiles files;
      files.random.seed(static_cast<unsigned>(stop) * 100 + seed);
      files.stop_at = stop;
      const Progress done = Work(files, budget);
      files.PowerCut();
      lost += CheckStore(files, budget, budget == 0 ? done.synced : std::set<int>{},
                         "power cut at " + std::to_string(stop) + " seed " + std::to_string(seed));
      if (testing::Test::HasFailure()) return;
    }
  }
  EXPECT_GT(lost, 0) << "the harness loses nothing";
}

TEST_P(Faults, SyncsThatDoNothing) {
  const uint64_t budget = static_cast<uint64_t>(GetParam());
  for (unsigned seed = 0; seed < 200; ++seed) {
    FakeFiles files;
    files.random.seed(seed);
    files.drop_syncs = true;
    Work(files, budget);
    files.PowerCut();
    files.drop_syncs = false;
    const auto store = PageStore::Open("/kv", TestGeometry(), TestOptions(&files, budget));
    if (!store.ok()) continue;  // a header that did not get there is refused
    for (int text = 0; text < 10; ++text) Holds(*store.value(), MakePage(text));
    if (testing::Test::HasFailure()) return;
  }
}

TEST_P(Faults, FullDiskAtEveryOperation) {
  const uint64_t budget = static_cast<uint64_t>(GetParam());
  FakeFiles whole;
  Work(whole, budget);
  for (int64_t fail = 0; fail < whole.operations; ++fail) {
    for (const int64_t count : {int64_t{1}, int64_t{3}, int64_t{1} << 40}) {
      FakeFiles files;
      files.random.seed(static_cast<unsigned>(fail));
      files.fail_at = fail;
      files.fail_count = count;
      SCOPED_TRACE("full at " + std::to_string(fail) + ", " + std::to_string(count) + " times");
      Result<StorePtr> store = PageStore::Open("/kv", TestGeometry(), TestOptions(&files, budget));
      std::map<int, RefPtr> held;
      for (int text = 0; store.ok() && text < 10; ++text) {
        ++files.now;
        const Result<RefPtr> put = Put(*store.value(), MakePage(text));
        if (put.ok()) {
          EXPECT_TRUE(Same(put.value(), MakePage(text)));
          if (text % 4 == 0 && budget == 0) held[text] = put.value();
        } else {
          EXPECT_EQ(put.status().code(), StatusCode::kNoSpace);
        }
        for (const auto& [old, ref] : held) EXPECT_TRUE(Same(ref, MakePage(old)));
        for (int old = 0; old <= text; ++old) Holds(*store.value(), MakePage(old));
      }
      held.clear();
      files.fail_at = -1;
      EXPECT_TRUE(!store.ok() || Put(*store.value(), MakePage(77)).ok());
      store = Status(StatusCode::kIo, "closed");
      CheckStore(files, budget, {}, "afterwards");
      if (testing::Test::HasFailure()) return;
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Slots, Faults, testing::Values(0, 3),
                         [](const auto& info) { return info.param ? "Few" : "Many"; });

// A reader that has checked a page must not take a half written one for it when the writer dies in the middle.
TEST(Killed, WhileAReaderKnowsTheSlot) {
  for (int64_t stop = 0; stop < 12; ++stop) {
    for (unsigned seed = 0; seed < 10; ++seed) {
      FakeFiles files;
      files.random.seed(seed);
      StorePtr writer = OpenStore(&files, 1);
      const StorePtr reader = OpenStore(&files, 1);
      ASSERT_TRUE(Put(*writer, MakePage(1)).ok());
      EXPECT_TRUE(Holds(*reader, MakePage(1)));
      const std::vector<uint8_t> index = files.Contents(kTestIndex);
      files.stop_at = files.operations + stop;
      (void)Put(*writer, MakePage(2));
      writer = nullptr;
      files.stop_at = -1;
      // The reader may have looked into the index before the writer changed it.
      ASSERT_TRUE(files.Open(kTestIndex, OpenMode::kWrite).value()->Write(0, index.data(), index.size()).ok());
      Holds(*reader, MakePage(1));
      Holds(*reader, MakePage(2));
      ASSERT_FALSE(testing::Test::HasFailure()) << "killed at " << stop;
    }
  }
}

// The next byte to try: each near a slot's beginning, some of what is between.
size_t NextByte(size_t byte, size_t step) {
  const size_t in_slot = byte % 16384;
  return in_slot < 1300 ? byte + 1 : byte + std::min(step, 16384 - in_slot);
}

// A store of four slots: three pages, a record of sinks.
std::vector<TestPage> SmallStore(FakeFiles& files) {
  std::vector<TestPage> pages = {MakePage(1), MakePage(1, 0, true), MakePage(1, 1), MakePage(2)};
  const StorePtr store = OpenStore(&files, 4);
  for (const TestPage& page : pages) EXPECT_TRUE(Put(*store, page).ok());
  return pages;
}

TEST(Damage, ABitFlippedAnywhere) {
  FakeFiles files;
  const std::vector<TestPage> pages = SmallStore(files);
  const std::vector<uint8_t> good = files.Contents(kTestPages);
  int refused = 0, missed = 0;
  for (size_t byte = 0; byte < good.size(); byte = NextByte(byte, 61)) {
    std::vector<uint8_t> bad = good;
    bad[byte] ^= static_cast<uint8_t>(1 << byte % 8);
    files.SetContents(kTestPages, bad);
    const auto store = PageStore::Open("/kv", TestGeometry(), TestOptions(&files, 4));
    if (!store.ok()) {
      EXPECT_LT(byte, 156u);
      ++refused;
      continue;
    }
    int here = 0;
    for (const TestPage& page : pages) here += !Holds(*store.value(), page);
    EXPECT_LE(here, 1) << byte;
    missed += here;
    if (here > 0) {  // it is a free slot from now on
      for (const TestPage& page : pages) EXPECT_TRUE(Put(*store.value(), page).ok());
      for (const TestPage& page : pages) EXPECT_TRUE(Holds(*store.value(), page)) << byte;
      EXPECT_EQ(store.value()->stats().evictions, 0u);
      files.SetContents(kTestIndex, {});
    }
    if (testing::Test::HasFailure()) return;
  }
  EXPECT_EQ(refused, 148);                                // every byte that its checksum covers, and the checksum
  EXPECT_EQ(missed, 3 * (88 + 32 + 200) + 88 + 32 + 64);  // every byte of heads, ids and payloads but the last use
}

TEST(Damage, ABitFlippedInTheIndex) {
  FakeFiles files;
  const std::vector<TestPage> pages = SmallStore(files);
  const std::vector<uint8_t> good = files.Contents(kTestIndex), store_bytes = files.Contents(kTestPages);
  for (size_t byte = 0; byte < good.size(); ++byte) {
    std::vector<uint8_t> bad = good;
    bad[byte] ^= static_cast<uint8_t>(1 << byte % 8);
    files.SetContents(kTestIndex, bad);
    files.SetContents(kTestPages, store_bytes);
    const StorePtr store = OpenStore(&files, 4);
    for (const TestPage& page : pages) Holds(*store, page);
    for (const TestPage& page : pages) EXPECT_TRUE(Put(*store, page).ok());
    for (const TestPage& page : pages) Holds(*store, page);
    if (testing::Test::HasFailure()) return;
  }
}

TEST(Damage, CutOffAnywhere) {
  FakeFiles files;
  const std::vector<TestPage> pages = SmallStore(files);
  const std::vector<uint8_t> good = files.Contents(kTestPages);
  for (size_t size = 0; size <= good.size(); size = NextByte(size, 97)) {
    files.SetContents(kTestPages, {good.begin(), good.begin() + static_cast<ptrdiff_t>(size)});
    const auto store = PageStore::Open("/kv", TestGeometry(), TestOptions(&files, 4));
    if (size >= 8 && size < 16384) {
      EXPECT_EQ(store.status().code(), StatusCode::kCorrupt) << size;
      continue;
    }
    ASSERT_TRUE(store.ok()) << size << ": " << store.status().message();
    for (size_t i = 0; i < pages.size(); ++i) {
      const size_t whole = 16384 * (i + 1) + 1024 + pages[i].payload.size();
      const bool there = Holds(*store.value(), pages[i]);
      EXPECT_TRUE(size >= whole ? there : size > whole - 8 || !there)
          << size;  // a payload that ends in zeros is whole a little sooner
    }
    for (const TestPage& page : pages) EXPECT_TRUE(Put(*store.value(), page).ok());
    for (const TestPage& page : pages) EXPECT_TRUE(Holds(*store.value(), page));
    if (testing::Test::HasFailure()) return;
  }
}

// Random operations against a plain map of what was put; the budget makes pages vanish, so a miss is allowed unless the
// page is held.
TEST(Random, AgainstAPlainMap) {
  for (unsigned seed = 0; seed < 30; ++seed) {
    std::mt19937 random(seed);
    FakeFiles files;
    files.random.seed(seed);
    const uint64_t budget = seed % 3 == 0 ? 0 : 6;
    std::vector<StorePtr> stores(2);
    std::set<int> put;
    std::vector<std::pair<int, RefPtr>> held;
    for (int step = 0; step < 600; ++step) {
      const size_t which = random() % 2;
      if (stores[which] == nullptr) stores[which] = OpenStore(&files, budget);
      PageStore& store = *stores[which];
      const int text = static_cast<int>(random() % 12);
      files.now += random() % 50;
      switch (random() % 8) {
        case 0:
        case 1:
        case 2: {
          const auto ref = Put(store, MakePage(text));
          ASSERT_TRUE(ref.ok() || ref.status().code() == StatusCode::kNoSpace) << ref.status().message();
          if (!ref.ok()) break;
          ASSERT_TRUE(Same(ref.value(), MakePage(text)));
          put.insert(text);
          if (random() % 2) held.emplace_back(text, ref.value());
          break;
        }
        case 3:
        case 4: {
          const auto ref = store.Find(MakePage(text).head);
          ASSERT_TRUE(ref.ok());
          ASSERT_TRUE(ref.value() == nullptr || put.contains(text));
          if (ref.value() == nullptr) break;
          ASSERT_TRUE(Same(ref.value(), MakePage(text)));
          if (random() % 2) held.emplace_back(text, ref.value());
          break;
        }
        case 5:
        case 6:
          if (!held.empty()) held.erase(held.begin() + static_cast<ptrdiff_t>(random() % held.size()));
          break;
        default:
          if (random() % 4 == 0) stores[which] = nullptr;
          if (held.size() > 5) held.clear();
      }
      for (const auto& [old, ref] : held) ASSERT_TRUE(Same(ref, MakePage(old))) << "seed " << seed << " step " << step;
    }
    held.clear();
    stores.assign(2, nullptr);
    KvDirectory directory(files, "/kv");
    const auto info = directory.Verify("abababababababab.pages");
    ASSERT_TRUE(info.ok() && info->problem.ok());
    EXPECT_EQ(info->damaged, 0u);
    EXPECT_LE(info->pages, 12u) << "a page lies there twice";
  }
}

TEST(Killed, AgainAndAgainOnARealFile) {
  const std::string directory = testing::TempDir() + "kvart_kill_" + std::to_string(getpid());
  std::filesystem::remove_all(directory);
  std::mt19937 random(1);
  uint64_t most = 0;
  for (int round = 0; round < 30; ++round) {
    const uint64_t budget = round % 2 == 0 ? 0 : 30;
    int says[2];
    ASSERT_EQ(pipe(says), 0);
    const pid_t child = fork();
    if (child == 0) {
      const auto store = PageStore::Open(directory, TestGeometry(), TestOptions(nullptr, budget));
      if (!store.ok()) _exit(1);
      RefPtr last;  // held, so that the next one does not take its place
      for (int text = round * 3;; ++text) {
        const auto put = Put(*store.value(), MakePage(text % 200));
        if (!put.ok()) _exit(2);
        last = put.value();
        (void)!write(says[1], &text, sizeof text);
      }
    }
    close(says[1]);
    int last = -1;
    const int wait_for = 1 + static_cast<int>(random() % 40);
    for (int i = 0; i < wait_for; ++i) {
      if (read(says[0], &last, sizeof last) != sizeof last) break;
    }
    kill(child, SIGKILL);
    int status = 0;
    waitpid(child, &status, 0);
    EXPECT_TRUE(WIFSIGNALED(status));
    while (read(says[0], &last, sizeof last) == sizeof last) {
    }
    close(says[0]);
    const StorePtr store = OpenStore(nullptr, budget, directory);
    ASSERT_NE(store, nullptr);
    EXPECT_TRUE(store->stats().writable);
    for (int text = 0; text < 200; ++text) Holds(*store, MakePage(text));
    EXPECT_TRUE(Holds(*store, MakePage(last % 200))) << "what was put before the kill is lost";
    EXPECT_EQ(store->stats().damaged, 0u);
    most = std::max(most, store->stats().hits);
    if (testing::Test::HasFailure()) break;
  }
  EXPECT_GT(most, 20u);
  std::filesystem::remove_all(directory);
}

}  // namespace
}  // namespace kvart

// The index against a plain multimap; growth, followers, damage.
#include "kvcache/index.h"

#include <gtest/gtest.h>

#include <cstring>
#include <map>
#include <random>

#include "base/fake_fs.h"

namespace kvart {
namespace {

// Names that fall near each other: long runs, and around the table's end.
PageName Name(uint64_t key) {
  PageName name{};
  std::memcpy(name.data(), &key, sizeof key);
  return name;
}

std::vector<uint32_t> All(SlotIndex& index, const PageName& name) {
  std::vector<uint32_t> slots;
  index.Find(name, [&](uint32_t slot) {
    slots.push_back(slot);
    return false;
  });
  std::sort(slots.begin(), slots.end());
  return slots;
}

TEST(SlotIndex, AgainstAPlainMap) {
  FakeFiles files;
  SlotIndex index(files, "/i");
  ASSERT_TRUE(index.Rebuild({}, 100).ok());
  std::mt19937 random(3);
  std::map<uint64_t, std::vector<uint32_t>> plain;
  uint32_t slot = 0, n = 0;
  for (int step = 0; step < 6000; ++step) {
    const uint64_t key = 250 + random() % 40 + 256 * (random() % 3);  // homes 250 … 33 of a table of 256
    auto& mine = plain[key];
    if (random() % 2 == 0 && n < 120) {
      ASSERT_TRUE(index.Insert(Name(key), slot).ok());
      ASSERT_TRUE(index.Insert(Name(key), slot).ok());  // once
      mine.push_back(slot++);
      ++n;
    } else if (!mine.empty()) {
      const size_t at = random() % mine.size();
      ASSERT_TRUE(index.Remove(Name(key), mine[at]).ok());
      ASSERT_TRUE(index.Remove(Name(key), mine[at]).ok());
      mine.erase(mine.begin() + static_cast<ptrdiff_t>(at));
      --n;
    }
    if (step % 50 == 0) {
      for (const auto& [k, slots] : plain) ASSERT_EQ(All(index, Name(k)), slots) << step;
    }
    ASSERT_TRUE(step != 3000 || index.Reserve(129).ok());
    ASSERT_TRUE(step % 500 != 0 || index.Open(true).ok());
  }
  EXPECT_EQ(files.Contents("/i").size(), 16u + 16 * 512);
}

TEST(SlotIndex, StopsWhereItIsTold) {
  FakeFiles files;
  SlotIndex index(files, "/i");
  ASSERT_TRUE(index.Rebuild({{5, 1}, {5, 2}}, 4).ok());
  int calls = 0;
  EXPECT_TRUE(index.Find(Name(5), [&](uint32_t slot) { return ++calls, slot == 1; }));
  EXPECT_EQ(calls, 1);
  EXPECT_FALSE(index.Find(Name(6), [](uint32_t) { return true; }));
  ASSERT_TRUE(index.Insert(Name(0), 3).ok());  // zero marks what is empty: it is kept as one
  EXPECT_EQ(All(index, Name(0)), std::vector<uint32_t>{3});
}

TEST(SlotIndex, AReaderFollowsTheWriter) {
  FakeFiles files;
  SlotIndex writer(files, "/i"), reader(files, "/i");
  EXPECT_EQ(reader.Open(false).code(), StatusCode::kNotFound);
  EXPECT_FALSE(reader.Find(Name(9), [](uint32_t) { return true; }));
  ASSERT_TRUE(writer.Rebuild({}, 4).ok());
  for (uint32_t slot = 0; slot < 2000; ++slot) {
    ASSERT_TRUE(writer.Reserve(slot + 1).ok());
    ASSERT_TRUE(writer.Insert(Name(slot * 77 + 1), slot).ok());
    ASSERT_EQ(All(reader, Name(slot * 77 + 1)), std::vector<uint32_t>{slot});
  }
  EXPECT_FALSE(files.Exists("/i.new"));
  const auto bytes = files.Contents("/i");
  uint64_t used = 0;
  for (size_t at = 16; at < bytes.size(); at += 16)
    used += std::any_of(bytes.begin() + static_cast<ptrdiff_t>(at), bytes.begin() + static_cast<ptrdiff_t>(at) + 8,
                        [](uint8_t b) { return b != 0; });
  EXPECT_EQ(used, 2000u);
  EXPECT_LE(used * 32, bytes.size());
}

TEST(SlotIndex, RefusesWhatIsNotOne) {
  FakeFiles files;
  SlotIndex index(files, "/i");
  ASSERT_TRUE(index.Rebuild({{5, 1}}, 4).ok());
  const auto good = files.Contents("/i");
  for (size_t byte = 0; byte < 16; ++byte) {
    auto bad = good;
    bad[byte] ^= 16;
    files.SetContents("/i", bad);
    EXPECT_EQ(index.Open(true).code(), StatusCode::kCorrupt) << byte;
    EXPECT_FALSE(index.Find(Name(5), [](uint32_t) { return true; }));
  }
  for (const size_t size : {size_t{0}, size_t{15}, size_t{16}, good.size() - 1}) {
    files.SetContents("/i", {good.begin(), good.begin() + static_cast<ptrdiff_t>(size)});
    EXPECT_EQ(index.Open(true).code(), StatusCode::kCorrupt) << size;
  }
  std::vector<uint8_t> full = good;
  for (size_t at = 16; at < full.size(); ++at) full[at] = 0xff;
  files.SetContents("/i", full);
  ASSERT_TRUE(index.Open(true).ok());
  EXPECT_FALSE(index.Find(Name(5), [](uint32_t) { return true; }));  // and comes back
  EXPECT_EQ(index.Insert(Name(5), 1).code(), StatusCode::kCorrupt);
  EXPECT_TRUE(index.Remove(Name(5), 1).ok());
}

TEST(SlotIndex, AFailedRebuildLeavesTheOldOne) {
  for (int64_t fail = 0; fail < 4; ++fail) {
    FakeFiles files;
    SlotIndex index(files, "/i");
    ASSERT_TRUE(index.Rebuild({{5, 1}}, 4).ok());
    files.stop_at = files.operations + fail;
    EXPECT_FALSE(index.Reserve(5000).ok());
    EXPECT_EQ(All(index, Name(5)), std::vector<uint32_t>{1});
    files.Reboot();
    ASSERT_TRUE(index.Open(true).ok());
    EXPECT_EQ(All(index, Name(5)), std::vector<uint32_t>{1});
    EXPECT_TRUE(index.Reserve(5000).ok());
    EXPECT_EQ(All(index, Name(5)), std::vector<uint32_t>{1});
  }
}

}  // namespace
}  // namespace kvart

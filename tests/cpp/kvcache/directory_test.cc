// What people are told of a K/V directory, and what they may remove.
#include "kvcache/directory.h"

#include "kvcache/store_testing.h"

namespace kvart {
namespace {

StorePtr OpenOther(FakeFiles& files, uint8_t fingerprint) {
  StoreOptions o = TestOptions(&files);
  o.fingerprint.fill(fingerprint);
  return PageStore::Open("/kv", TestGeometry(), o).value();
}

TEST(KvDirectory, ListsWhatStoresHold) {
  FakeFiles files;
  KvDirectory directory(files, "/kv");
  EXPECT_TRUE(directory.List().value().empty());
  StorePtr store = OpenStore(&files);
  files.now = 2'000'000;
  for (int text = 0; text < 5; ++text) ASSERT_TRUE(Put(*store, MakePage(text)).ok());
  ASSERT_TRUE(Put(*store, MakePage(0, 0, true)).ok());
  files.SetContents("/kv/ffff.pages", {1, 2, 3});
  files.SetContents("/kv/notes.txt", {1, 2, 3});
  auto list = directory.List().value();
  ASSERT_EQ(list.size(), 2u);
  const StoreInfo& info = list[0];
  EXPECT_EQ(info.file, "abababababababab.pages");
  EXPECT_TRUE(info.problem.ok());
  EXPECT_TRUE(info.busy);
  EXPECT_EQ(info.fingerprint.substr(0, 6), "ababab");
  EXPECT_EQ(info.k_format, "int4");
  EXPECT_EQ(info.page_tokens, 8u);
  EXPECT_EQ(info.sinks, 2u);
  EXPECT_EQ(info.slots, 16u);
  EXPECT_EQ(info.pages, 5u);
  EXPECT_EQ(info.sink_records, 1u);
  EXPECT_EQ(info.damaged, 0u);
  EXPECT_EQ(info.last_use, 2'000'000);
  EXPECT_EQ(info.bytes, 16384 * 17 + 16 + 16 * 256u);
  EXPECT_FALSE(list[1].problem.ok());
  store = nullptr;
  EXPECT_FALSE(directory.List().value()[0].busy);
}

TEST(KvDirectory, VerifyFindsDamage) {
  FakeFiles files;
  for (int text = 0; text < 4; ++text) ASSERT_TRUE(Put(*OpenStore(&files), MakePage(text)).ok());
  files.Flip(kTestPages, 16384 * 2 + 1024 + 7, 1);  // a payload
  files.Flip(kTestPages, 16384 * 3 + 100, 1);       // an id
  KvDirectory directory(files, "/kv");
  EXPECT_EQ(directory.List().value()[0].damaged, 1u);
  const auto before = files.Contents(kTestPages);
  const StoreInfo info = directory.Verify("abababababababab.pages").value();
  EXPECT_EQ(info.damaged, 2u);
  EXPECT_EQ(info.pages, 2u);
  EXPECT_EQ(info.damaged_offsets, (std::vector<uint64_t>{16384 * 2, 16384 * 3}));
  EXPECT_EQ(files.Contents(kTestPages), before);
  EXPECT_EQ(directory.Verify("0000.pages").status().code(), StatusCode::kNotFound);
  EXPECT_EQ(directory.Verify("../x.pages").status().code(), StatusCode::kInvalidArgument);
  EXPECT_EQ(directory.Verify("x.session").status().code(), StatusCode::kInvalidArgument);
}

TEST(KvDirectory, RemovesWhatNobodyWrites) {
  FakeFiles files;
  KvDirectory directory(files, "/kv");
  StorePtr store = OpenStore(&files);
  ASSERT_TRUE(Put(*store, MakePage(1)).ok());
  EXPECT_EQ(directory.Remove("abababababababab.pages").code(), StatusCode::kBusy);
  EXPECT_TRUE(Holds(*store, MakePage(1)));
  store = nullptr;
  EXPECT_TRUE(directory.Remove("abababababababab.pages").ok());
  EXPECT_TRUE(files.Paths().empty());
  EXPECT_EQ(directory.Remove("abababababababab.pages").code(), StatusCode::kNotFound);
  EXPECT_EQ(directory.Remove("x/../y.pages").code(), StatusCode::kInvalidArgument);
  EXPECT_EQ(directory.Remove(".pages").code(), StatusCode::kInvalidArgument);
}

TEST(KvDirectory, ClearsTheLongestUnusedFirst) {
  FakeFiles files;
  for (const uint8_t n : {3, 1, 2}) {
    files.now = 1'000'000 + n * 1000;
    ASSERT_TRUE(Put(*OpenOther(files, n), MakePage(n)).ok());
  }
  KvDirectory directory(files, "/kv");
  const uint64_t each = directory.List().value()[0].bytes;
  const StorePtr busy = OpenOther(files, 1);
  ClearReport report = directory.Clear(each * 3).value();
  EXPECT_EQ(report.removed_files, 0u);
  report = directory.Clear(each * 2).value();
  EXPECT_EQ(report.removed_files, 1u);
  EXPECT_EQ(report.busy_files, 1u);
  EXPECT_EQ(report.removed_bytes, each);
  EXPECT_EQ(report.kept_bytes, each * 2);
  EXPECT_TRUE(files.Exists("/kv/0303030303030303.pages"));
  EXPECT_FALSE(files.Exists("/kv/0202020202020202.pages"));
  report = directory.Clear(0).value();
  EXPECT_EQ(report.kept_bytes, each);
  EXPECT_TRUE(files.Exists("/kv/0101010101010101.pages"));
}

}  // namespace
}  // namespace kvart

// What people are told of a K/V directory, and what they may remove.
#include "kvcache/directory.h"

#include <filesystem>
#include <fstream>

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
  files.SetContents("/kv/ffffffffffffffff.pages", {'K', 'V', 'A'});
  files.SetContents("/kv/eeeeeeeeeeeeeeee.pages", {1, 2, 3});
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
  EXPECT_EQ(directory.Verify("0000000000000000.pages").status().code(), StatusCode::kNotFound);
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

TEST(KvDirectory, LeavesAloneWhatIsNotKvarts) {
  FakeFiles files;
  const std::vector<uint8_t> magic{'K', 'V', 'A', 'R', 'T', 'P', 'G', 1};
  ASSERT_TRUE(Put(*OpenStore(&files), MakePage(1)).ok());
  const std::string other(16, 'c'), index = "/kv/abababababababab.index";
  for (const std::string& name :
       {std::string("book"), std::string(15, '0'), std::string(17, '0'), std::string(16, 'A')})
    files.SetContents("/kv/" + name + ".pages", magic);
  std::vector<uint8_t> zeros(16385);
  files.SetContents("/kv/" + other + ".pages", zeros);  // longer than a file that is being made
  files.SetContents("/kv/dddddddddddddddd.pages", {'t', 'e', 'x', 't'});
  files.SetContents(index, {'m', 'i', 'n', 'e'});
  KvDirectory directory(files, "/kv");
  ASSERT_EQ(directory.List().value().size(), 1u);
  for (const char* name : {"book.pages", "cccccccccccccccc.pages", "dddddddddddddddd.pages"}) {
    EXPECT_EQ(directory.Remove(name).code(), StatusCode::kInvalidArgument) << name;
    EXPECT_EQ(directory.Verify(name).status().code(), StatusCode::kInvalidArgument) << name;
  }
  EXPECT_EQ(directory.Clear(0).value().removed_files, 1u);
  EXPECT_FALSE(files.Exists(kTestPages));
  EXPECT_EQ(files.Paths().size(), 7u) << "all the others, the index too";
  zeros.resize(16384);
  files.SetContents("/kv/" + other + ".pages", zeros);
  files.SetContents("/kv/" + other + ".index", {});
  EXPECT_TRUE(directory.Remove(other + ".pages").ok());
  EXPECT_EQ(files.Paths().size(), 6u);
}

TEST(KvDirectory, LeavesLinksAlone) {
  const std::string path = testing::TempDir() + "kvart_links";
  std::filesystem::remove_all(path);
  std::filesystem::create_directories(path);
  std::ofstream(path + "/treasure") << "KVARTPG\x01";
  std::filesystem::create_symlink(path + "/treasure", path + "/0123456789abcdef.pages");
  KvDirectory directory(SystemFiles(), path);
  EXPECT_TRUE(directory.List().value().empty());
  EXPECT_EQ(directory.Remove("0123456789abcdef.pages").code(), StatusCode::kInvalidArgument);
  EXPECT_EQ(directory.Clear(0).value().removed_files, 0u);
  EXPECT_TRUE(std::filesystem::is_symlink(path + "/0123456789abcdef.pages"));
  std::filesystem::remove_all(path);
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

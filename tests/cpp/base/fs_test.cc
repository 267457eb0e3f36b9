// The same body on the real file system and on the fake one; then what only the fake one does.
#include "base/fs.h"

#include <gtest/gtest.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstring>
#include <filesystem>

#include "base/fake_fs.h"

namespace kvart {
namespace {

class Files : public testing::TestWithParam<bool> {
 protected:
  Files() {
    directory_ = GetParam() ? testing::TempDir() + "kvart_fs_" + std::to_string(getpid()) : "/fake";
    EXPECT_TRUE(files().MakeDirectories(directory_ + "/a/b").ok());
  }
  ~Files() override {
    if (GetParam()) std::filesystem::remove_all(directory_);
  }
  FileSystem& files() { return GetParam() ? SystemFiles() : fake_; }
  std::shared_ptr<RandomFile> Open(const std::string& name, OpenMode mode = OpenMode::kCreate) {
    return files().Open(directory_ + "/" + name, mode).value();
  }
  FakeFiles fake_;
  std::string directory_;
};

TEST_P(Files, ReadsWhatWasWritten) {
  const auto file = Open("x");
  ASSERT_TRUE(file->Write(5, "hello", 5).ok());
  EXPECT_EQ(file->Size().value(), 10u);
  char text[6] = {};
  ASSERT_TRUE(file->Read(5, text, 5).ok());
  EXPECT_STREQ(text, "hello");
  ASSERT_TRUE(file->Read(0, text, 5).ok());
  EXPECT_EQ(text[0], 0);
  EXPECT_EQ(file->Read(6, text, 5).code(), StatusCode::kCorrupt);
  EXPECT_EQ(file->Read(100, text, 1).code(), StatusCode::kCorrupt);
  ASSERT_TRUE(file->Truncate(7).ok());
  EXPECT_EQ(Open("x", OpenMode::kRead)->Size().value(), 7u);
  EXPECT_FALSE(Open("x", OpenMode::kRead)->Write(0, "a", 1).ok());
  EXPECT_EQ(Open("x", OpenMode::kReplace)->Size().value(), 0u);
  EXPECT_EQ(files().Open(directory_ + "/y", OpenMode::kRead).status().code(), StatusCode::kNotFound);
  EXPECT_EQ(files().Open(directory_ + "/y", OpenMode::kWrite).status().code(), StatusCode::kNotFound);
}

TEST_P(Files, AllocatesZerosAndNeverShortens) {
  const auto file = Open("x");
  ASSERT_TRUE(file->Write(0, "hello", 5).ok());
  ASSERT_TRUE(file->Allocate(3, 100000).ok());
  EXPECT_EQ(file->Size().value(), 100003u);
  ASSERT_TRUE(file->Allocate(0, 10).ok());
  EXPECT_EQ(file->Size().value(), 100003u);
  char bytes[8];
  ASSERT_TRUE(file->Read(0, bytes, 8).ok());
  EXPECT_EQ(std::memcmp(bytes, "hello\0\0\0", 8), 0);
}

TEST_P(Files, AMapShowsWhatIsWrittenLaterAndOutlivesTheFile) {
  auto file = Open("x");
  ASSERT_TRUE(file->Write(0, "0123456789", 10).ok());
  const auto map = file->Map(16384 + 5, 1 << 16).value();  // behind the end, and at no page's edge
  ASSERT_TRUE(file->Allocate(0, 200000).ok());
  ASSERT_TRUE(file->Write(16384 + 5 + 40000, "new", 3).ok());
  ASSERT_TRUE(files().Remove(directory_ + "/x").ok());
  file = nullptr;
  EXPECT_EQ(std::memcmp(map.get() + 40000, "new", 3), 0);
}

TEST_P(Files, LocksBelongToOpenFiles) {
  const auto a = Open("x"), b = Open("x");
  ASSERT_TRUE(a->TryLock(7, false).ok());
  ASSERT_TRUE(b->TryLock(7, false).ok());
  EXPECT_EQ(a->TryLock(7, true).code(), StatusCode::kBusy);
  EXPECT_FALSE(a->IsLocked(7));  // not by one alone
  b->Unlock(7);
  ASSERT_TRUE(a->TryLock(7, true).ok());
  EXPECT_EQ(b->TryLock(7, false).code(), StatusCode::kBusy);
  EXPECT_TRUE(b->IsLocked(7));
  EXPECT_TRUE(Open("x", OpenMode::kRead)->IsLocked(7));
  EXPECT_FALSE(a->IsLocked(7));  // by itself
  EXPECT_TRUE(b->TryLock(8, true).ok());
  {
    const auto c = Open("x");
    EXPECT_EQ(c->TryLock(8, true).code(), StatusCode::kBusy);
  }
  EXPECT_EQ(b->TryLock(7, true).code(), StatusCode::kBusy);  // closing c took nothing from a
  a->Unlock(7);
  EXPECT_TRUE(b->TryLock(7, true).ok());
  EXPECT_TRUE(b->TryLock((uint64_t{1} << 40) + 3, true).ok());
}

TEST_P(Files, NamesAndDirectories) {
  const auto a = Open("one");
  ASSERT_TRUE(a->Write(0, "abc", 3).ok());
  EXPECT_TRUE(a->IsAt(directory_ + "/one"));
  const auto b = Open("two");
  EXPECT_FALSE(b->IsAt(directory_ + "/one"));
  ASSERT_TRUE(files().Rename(directory_ + "/one", directory_ + "/two").ok());
  EXPECT_TRUE(a->IsAt(directory_ + "/two"));
  EXPECT_FALSE(b->IsAt(directory_ + "/two"));
  EXPECT_EQ(files().Info(directory_ + "/two")->bytes, 3u);
  EXPECT_EQ(files().List(directory_).value(), std::vector<std::string>{"two"});
  EXPECT_EQ(files().List(directory_ + "/none").status().code(), StatusCode::kNotFound);
  ASSERT_TRUE(files().Remove(directory_ + "/two").ok());
  EXPECT_EQ(files().Remove(directory_ + "/two").code(), StatusCode::kNotFound);
  EXPECT_FALSE(a->IsAt(directory_ + "/two"));
  EXPECT_TRUE(files().SyncDirectory(directory_).ok());
  EXPECT_TRUE(a->Sync().ok());
}

INSTANTIATE_TEST_SUITE_P(RealAndFake, Files, testing::Bool(),
                         [](const auto& info) { return info.param ? "Real" : "Fake"; });

TEST(SystemFiles, FilesAreForThisUserAloneAndOthersAreRefused) {
  const std::string directory = testing::TempDir() + "kvart_fs_mode_" + std::to_string(getpid());
  ASSERT_TRUE(SystemFiles().MakeDirectories(directory).ok());
  const auto file = SystemFiles().Open(directory + "/x", OpenMode::kCreate).value();
  struct stat info {};
  ASSERT_EQ(stat((directory + "/x").c_str(), &info), 0);
  EXPECT_EQ(info.st_mode & 0777, 0600u);
  EXPECT_EQ(SystemFiles().Open(directory, OpenMode::kRead).status().code(), StatusCode::kInvalidArgument);
  ASSERT_EQ(mkfifo((directory + "/pipe").c_str(), 0600), 0);
  EXPECT_FALSE(SystemFiles().Open(directory + "/pipe", OpenMode::kCreate).ok());  // and does not hang
  EXPECT_FALSE(SystemFiles().MakeDirectories(directory + "/x/y").ok());
  EXPECT_FALSE(SystemFiles().MakeDirectories(directory + "/x").ok());
  std::filesystem::remove_all(directory);
}

TEST(SystemFiles, LocksHoldAgainstOtherProcesses) {
  const std::string path = testing::TempDir() + "kvart_fs_lock_" + std::to_string(getpid());
  const auto file = SystemFiles().Open(path, OpenMode::kCreate).value();
  ASSERT_TRUE(file->TryLock(3, true).ok());
  const pid_t child = fork();
  if (child == 0) {
    const auto mine = SystemFiles().Open(path, OpenMode::kCreate);
    _exit(mine.ok() && mine.value()->TryLock(3, false).code() == StatusCode::kBusy &&
                  mine.value()->TryLock(4, true).ok()
              ? 0
              : 1);
  }
  int status = 1;
  waitpid(child, &status, 0);
  EXPECT_EQ(status, 0);
  EXPECT_TRUE(file->TryLock(4, true).ok());  // the child's went with it
  std::filesystem::remove(path);
}

TEST(FakeFiles, StopsFailsAndForgets) {
  FakeFiles files;
  auto file = files.Open("/x", OpenMode::kCreate).value();
  ASSERT_TRUE(file->Write(0, "abcd", 4).ok());
  ASSERT_TRUE(file->Sync().ok());
  files.stop_at = files.operations;
  EXPECT_FALSE(file->Write(4, "efgh", 4).ok());
  EXPECT_FALSE(file->Write(4, "efgh", 4).ok());
  files.Reboot();
  EXPECT_EQ(std::string(reinterpret_cast<const char*>(files.Contents("/x").data()), 4), "abcd");
  files.fail_at = files.operations;
  EXPECT_EQ(file->Write(0, "zzzz", 4).code(), StatusCode::kNoSpace);
  EXPECT_TRUE(file->Write(0, "zzzz", 4).ok());
  bool lost = false, kept = false;
  for (int i = 0; i < 30; ++i) {
    FakeFiles disk;
    disk.random.seed(static_cast<unsigned>(i));
    const auto f = disk.Open("/x", OpenMode::kCreate).value();
    ASSERT_TRUE(f->Write(0, "abcd", 4).ok() && f->Sync().ok() && f->Write(0, "wxyz", 4).ok());
    disk.PowerCut();
    const auto bytes = disk.Contents("/x");
    ASSERT_EQ(bytes.size(), 4u);
    lost |= bytes[0] == 'a';
    kept |= bytes[0] == 'w';
  }
  EXPECT_TRUE(lost && kept);
}

}  // namespace
}  // namespace kvart

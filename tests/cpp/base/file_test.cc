// Mapped files: what is there, what is not, and what is no file.
#include "base/file.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <cstring>
#include <filesystem>
#include <fstream>
#include <string>

namespace kvart {
namespace {

namespace fs = std::filesystem;

class FileTest : public ::testing::Test {
 protected:
  void SetUp() override {
    const std::string name = ::testing::UnitTest::GetInstance()->current_test_info()->name();
    dir_ = fs::temp_directory_path() / ("kvart_file_test_" + name + "_" + std::to_string(::getpid()));
    fs::create_directories(dir_);
  }
  void TearDown() override {
    std::error_code ignored;
    fs::remove_all(dir_, ignored);
  }
  std::string Make(const std::string& name, const std::string& content) const {
    const fs::path path = dir_ / name;
    std::ofstream(path, std::ios::binary) << content;
    return path.string();
  }
  fs::path dir_;
};

TEST_F(FileTest, ContentIsThere) {
  std::string content;
  for (int i = 0; i < 100000; ++i) content += static_cast<char>(i * 31);
  const std::string path = Make("some file.bin", content);
  const auto mapping = Mapping::Open(path);
  ASSERT_TRUE(mapping.ok()) << mapping.status().message();
  const auto bytes = (*mapping)->bytes();
  ASSERT_EQ(bytes.size(), content.size());
  EXPECT_EQ(std::memcmp(bytes.data(), content.data(), content.size()), 0);
  EXPECT_EQ((*mapping)->path(), path);
}

TEST_F(FileTest, OutlivesItsName) {
  const std::string path = Make("gone", "hello");
  const auto mapping = Mapping::Open(path);
  ASSERT_TRUE(mapping.ok());
  fs::remove(path);
  EXPECT_EQ((*mapping)->bytes()[4], 'o');
}

TEST_F(FileTest, Empty) {
  const auto mapping = Mapping::Open(Make("empty", ""));
  ASSERT_TRUE(mapping.ok()) << mapping.status().message();
  EXPECT_TRUE((*mapping)->bytes().empty());
}

TEST_F(FileTest, Missing) {
  for (const fs::path& missing : {dir_ / "missing.gguf", dir_ / "no" / "such" / "folder", fs::path()}) {
    const std::string path = missing.string();
    const auto mapping = Mapping::Open(path);
    ASSERT_FALSE(mapping.ok()) << path;
    EXPECT_EQ(mapping.status().code(), StatusCode::kNotFound);
    EXPECT_EQ(mapping.status().file(), path);
    EXPECT_NE(mapping.status().message().find(path), std::string::npos) << mapping.status().message();
  }
}

TEST_F(FileTest, NotAFile) {
  const auto folder = Mapping::Open(dir_.string());
  ASSERT_FALSE(folder.ok());
  EXPECT_EQ(folder.status().code(), StatusCode::kInvalidArgument);
  EXPECT_NE(folder.status().message().find(dir_.string()), std::string::npos);

  const auto device = Mapping::Open("/dev/null");
  ASSERT_FALSE(device.ok());
  EXPECT_EQ(device.status().code(), StatusCode::kInvalidArgument);
}

TEST_F(FileTest, PathOfAFileAsFolder) {
  const auto mapping = Mapping::Open(Make("file", "x") + "/inside");
  ASSERT_FALSE(mapping.ok());
  EXPECT_FALSE(mapping.status().message().empty());
}

TEST_F(FileTest, Unreadable) {
  const std::string path = Make("secret", "x");
  fs::permissions(path, fs::perms::none);
  const auto mapping = Mapping::Open(path);
  if (mapping.ok()) GTEST_SKIP() << "this user may read everything";
  EXPECT_EQ(mapping.status().code(), StatusCode::kIo);
}

TEST_F(FileTest, HintsChangeNothing) {
  const std::string content(300000, 'z');
  const auto mapping = Mapping::Open(Make("hints", content));
  ASSERT_TRUE(mapping.ok());
  const auto bytes = (*mapping)->bytes();
  (*mapping)->Prefetch(bytes.data(), bytes.size());
  (*mapping)->Drop(bytes.data() + 1, bytes.size() - 1);
  (*mapping)->Drop(bytes.data() + 5, 0);
  (*mapping)->Drop(bytes.data() + 5, 10);  // less than a page
  for (const uint8_t byte : bytes) ASSERT_EQ(byte, 'z');
}

}  // namespace
}  // namespace kvart

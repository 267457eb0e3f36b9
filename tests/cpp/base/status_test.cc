// Status and Result: codes, names, messages, and the macros that pass failures on.
#include "base/status.h"

#include <gtest/gtest.h>

#include <memory>
#include <set>
#include <string>

namespace kvart {
namespace {

TEST(StatusTest, Ok) {
  EXPECT_TRUE(Status().ok());
  EXPECT_TRUE(Status::Ok().ok());
  EXPECT_EQ(Status().code(), StatusCode::kOk);
  EXPECT_TRUE(Status().message().empty());
  EXPECT_EQ(Status().offset(), Status::kNoOffset);
}

TEST(StatusTest, SaysWhere) {
  const Status status(StatusCode::kCorrupt, "a.gguf: bad magic at 0", "a.gguf", 0);
  EXPECT_FALSE(status.ok());
  EXPECT_EQ(status.code(), StatusCode::kCorrupt);
  EXPECT_EQ(status.message(), "a.gguf: bad magic at 0");
  EXPECT_EQ(status.file(), "a.gguf");
  EXPECT_EQ(status.offset(), 0);
  EXPECT_EQ(Status(StatusCode::kIo, "x", "f").offset(), Status::kNoOffset);
}

TEST(StatusTest, EveryCodeHasAName) {
  std::set<std::string> names;
  for (int code = 0; code <= static_cast<int>(StatusCode::kInternal); ++code) {
    const std::string name = StatusCodeName(static_cast<StatusCode>(code));
    EXPECT_NE(name, "unknown") << code;
    EXPECT_TRUE(names.insert(name).second) << name << " stands for two codes";
  }
  EXPECT_STREQ(StatusCodeName(StatusCode::kOk), "ok");
  EXPECT_STREQ(StatusCodeName(StatusCode::kInvalidArgument), "invalid_argument");
  EXPECT_STREQ(StatusCodeName(static_cast<StatusCode>(1000)), "unknown");
}

TEST(StatusTest, Errorf) {
  const Status status = Errorf(StatusCode::kNotFound, "tensor %s: %d of %lld", "blk.0", 3, 5000000000ll);
  EXPECT_EQ(status.code(), StatusCode::kNotFound);
  EXPECT_EQ(status.message(), "tensor blk.0: 3 of 5000000000");
  EXPECT_EQ(Errorf(StatusCode::kIo, "%s", "100 %s %n").message(), "100 %s %n") << "arguments are no formats";
  const std::string name(1 << 20, 'n');
  const std::string cut = Errorf(StatusCode::kIo, "name %s", name.c_str()).message();
  EXPECT_LT(cut.size(), 2000u);
  EXPECT_EQ(cut.substr(0, 8), "name nnn");
}

Result<int> Half(int value) {
  if (value % 2 != 0) return Errorf(StatusCode::kInvalidArgument, "%d is odd", value);
  return value / 2;
}
Result<int> Quarter(int value) {
  KVART_ASSIGN_OR_RETURN(const int half, Half(value));
  KVART_ASSIGN_OR_RETURN(int quarter, Half(half));
  return quarter;
}
Status CanQuarter(int value, int* passed) {
  KVART_RETURN_IF_ERROR(Quarter(value).status());
  ++*passed;
  return Status::Ok();
}

TEST(ResultTest, ValueOrReason) {
  EXPECT_EQ(*Half(8), 4);
  EXPECT_TRUE(Half(8).status().ok());
  const auto odd = Half(7);
  EXPECT_FALSE(odd.ok());
  EXPECT_EQ(odd.status().message(), "7 is odd");
}

TEST(ResultTest, MacrosPassFailuresOn) {
  EXPECT_EQ(Quarter(12).value(), 3);
  EXPECT_EQ(Quarter(5).status().message(), "5 is odd");
  EXPECT_EQ(Quarter(6).status().message(), "3 is odd");
  int passed = 0;
  EXPECT_TRUE(CanQuarter(4, &passed).ok());
  EXPECT_EQ(CanQuarter(6, &passed).code(), StatusCode::kInvalidArgument);
  EXPECT_EQ(passed, 1);
}

TEST(ResultTest, MoveOnlyValues) {
  Result<std::unique_ptr<std::string>> result(std::make_unique<std::string>("text"));
  ASSERT_TRUE(result.ok());
  EXPECT_EQ((*result)->size(), 4u);
  const std::unique_ptr<std::string> taken = std::move(result).value();
  EXPECT_EQ(*taken, "text");
}

}  // namespace
}  // namespace kvart

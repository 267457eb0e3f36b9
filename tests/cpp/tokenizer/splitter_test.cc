// The split pattern, whole and in parts.
#include "tokenizer/splitter.h"

#include <gtest/gtest.h>

#include <string>
#include <vector>

namespace kvart {
namespace {

using Pieces = std::vector<std::string>;

Pieces Split(std::string_view text) {
  Pieces out;
  Splitter splitter;
  while (const size_t length = splitter.Next(text, true)) {
    out.emplace_back(text.substr(0, length));
    text.remove_prefix(length);
  }
  EXPECT_TRUE(text.empty());
  return out;
}

// Character by character.
Pieces SplitInParts(const std::string& text) {
  Pieces out;
  Splitter splitter;
  std::string_view all = text;
  size_t begin = 0, end = 0, length = 0;
  while (end < text.size()) {
    DecodeValid(text.data() + end, &length);
    end += length;
    while (const size_t n = splitter.Next(all.substr(begin, end - begin), false)) {
      out.emplace_back(all.substr(begin, n));
      begin += n;
    }
  }
  while (const size_t n = splitter.Next(all.substr(begin), true)) {
    out.emplace_back(all.substr(begin, n));
    begin += n;
  }
  return out;
}

TEST(Splitter, Pieces) {
  const std::vector<std::pair<std::string, Pieces>> cases = {
      {"", {}},
      {"Hello world", {"Hello", " world"}},
      {"it's WE'LL I'\u017f", {"it", "'s", " WE", "'LL", " I", "'\u017f"}},
      {"'lx 'r 'v", {"'lx", " '", "r", " '", "v"}},
      {"'r", {"'r"}},
      {"''s", {"''", "s"}},
      {"'", {"'"}},
      {"a1 23", {"a", "1", " ", "2", "3"}},
      {"x != y;\n\n z", {"x", " !=", " y", ";\n\n", " z"}},
      {"   x", {"  ", " x"}},
      {"   ", {"   "}},
      {"   1", {"  ", " ", "1"}},
      {"  !", {" ", " !"}},
      {" \n \n  a", {" \n \n", " ", " a"}},
      {"\ta\t\t!", {"\ta", "\t", "\t", "!"}},
      {"\ra", {"\r", "a"}},
      {"\u3000\u4f60\u597d\uff0c\u4e16", {"\u3000\u4f60\u597d", "\uff0c\u4e16"}},
      {"\U0001f469\u200d\U0001f469\n", {"\U0001f469\u200d\U0001f469\n"}},
  };
  for (const auto& [text, pieces] : cases) {
    EXPECT_EQ(Split(text), pieces) << text;
    EXPECT_EQ(SplitInParts(text), pieces) << text;
  }
}

TEST(Splitter, SaysWhenMoreIsNeeded) {
  Splitter splitter;
  EXPECT_EQ(splitter.Next("'", false), 0u);
  EXPECT_EQ(splitter.Next("'l", false), 0u);
  EXPECT_EQ(splitter.Next("'ll", false), 3u);
  EXPECT_EQ(splitter.Next("1", false), 1u);
  EXPECT_EQ(splitter.Next("ab", false), 0u);
  EXPECT_EQ(splitter.Next("abc ", false), 3u);
}

}  // namespace
}  // namespace kvart

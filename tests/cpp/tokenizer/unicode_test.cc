// UTF-8, classes and NFC. Every code point is compared with the reference in tests/python/test_tokenizer.py.
#include "tokenizer/unicode.h"

#include <gtest/gtest.h>

namespace kvart {
namespace {

std::string Nfc(std::string_view text) {
  std::string out;
  AppendNfc(text, &out);
  std::string buffer;
  EXPECT_EQ(ToNfc(text, &buffer), out);
  return out;
}

TEST(Unicode, EveryCodePointGoesThroughUtf8) {
  for (uint32_t c = 0; c < 0x110000; ++c) {
    if (c >= 0xd800 && c < 0xe000) continue;
    std::string text;
    AppendUtf8(c, &text);
    const Utf8Front front = ReadUtf8(text);
    ASSERT_EQ(front.length, static_cast<int>(text.size()));
    ASSERT_EQ(front.code_point, c);
    for (size_t n = 0; n < text.size(); ++n) ASSERT_EQ(ReadUtf8(text.substr(0, n)).length, 0);
  }
}

TEST(Unicode, InvalidUtf8) {
  EXPECT_EQ(ReadUtf8("\x80").length, -1);
  EXPECT_EQ(ReadUtf8("\xc1\x80").length, -1);
  EXPECT_EQ(ReadUtf8("\xe0\x80\x80").length, -1);
  EXPECT_EQ(ReadUtf8("\xed\xa0\x80").length, -1);
  EXPECT_EQ(ReadUtf8("\xf4\x90\x80\x80").length, -1);
  EXPECT_EQ(ReadUtf8("\xf0\x9f\x98x").length, -3);
  bool cut_off = false;
  EXPECT_EQ(ValidUtf8Prefix("abcdefgh\xe4\xbd", &cut_off), 8u);
  EXPECT_TRUE(cut_off);
  EXPECT_EQ(ValidUtf8Prefix("abcdefgh\xe4\xbdx", &cut_off), 8u);
  EXPECT_FALSE(cut_off);
  std::string out;
  EXPECT_EQ(AppendReplacingInvalid("a\xff\xf0\x9f\x98z\xe4\xbd", false, &out), 6u);
  EXPECT_EQ(out, "a\xef\xbf\xbd\xef\xbf\xbdz");
  EXPECT_EQ(AppendReplacingInvalid("\xe4\xbd", true, &out), 2u);
  EXPECT_EQ(out, "a\xef\xbf\xbd\xef\xbf\xbdz\xef\xbf\xbd");
}

TEST(Unicode, Classes) {
  const CharTable& table = CharTable::Get();
  EXPECT_EQ(table.Class('a'), CharClass::kLetter);
  EXPECT_EQ(table.Class(0x4f60), CharClass::kLetter);
  EXPECT_EQ(table.Class('7'), CharClass::kNumber);
  EXPECT_EQ(table.Class(0xb2), CharClass::kNumber);
  EXPECT_EQ(table.Class(0x3000), CharClass::kSpace);
  EXPECT_EQ(table.Class(0x200b), CharClass::kOther);
  EXPECT_EQ(table.Class(0x10ffff), CharClass::kOther);
  EXPECT_EQ(table.Class(0x1c89), CharClass::kLetter) << "Unicode 16 in the reference's pattern";
}

TEST(Unicode, Nfc) {
  EXPECT_EQ(Nfc(""), "");
  EXPECT_EQ(Nfc("plain"), "plain");
  EXPECT_EQ(Nfc("xe\u0301y"), "x\u00e9y");
  EXPECT_EQ(Nfc("q\u0307\u0323"), "q\u0323\u0307");
  EXPECT_EQ(Nfc("\u1100\u1161\u11a8"), "\uac01");
  EXPECT_EQ(Nfc("\uac00\u11a8"), "\uac01");
  EXPECT_EQ(Nfc("\u212b\u2126"), "\u00c5\u03a9");
  EXPECT_EQ(Nfc("\u0958"), "\u0915\u093c");
  EXPECT_EQ(Nfc("\u0301"), "\u0301");
  EXPECT_EQ(Nfc("\U00011935\U00011930"), "\U00011935\U00011930") << "Unicode 12 in the reference's normaliser";
}

TEST(Unicode, NfcCutBeforeAStartIsTheSame) {
  const std::string text = "e\u0301\u0323a\u1100\u1161\u11a8 \u0958\u0301o\u0308\u0304";
  for (size_t i = 0, length = 0; i < text.size(); i += length) {
    const uint32_t c = DecodeValid(text.data() + i, &length);
    if (!CharTable::Get().StartsNfc(c)) continue;
    EXPECT_EQ(Nfc(text.substr(0, i)) + Nfc(text.substr(i)), Nfc(text)) << i;
  }
}

}  // namespace
}  // namespace kvart

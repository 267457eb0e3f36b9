// Known answers (FIPS 180-4 examples, RFC 3720 B.4), pieces, lengths around block edges.
#include "base/hash.h"

#include <gtest/gtest.h>

#include <string>
#include <vector>

namespace kvart {
namespace {

std::string HexOf(const Sha256::Digest& digest) {
  std::string text;
  for (const uint8_t byte : digest) {
    text += "0123456789abcdef"[byte >> 4];
    text += "0123456789abcdef"[byte & 15];
  }
  return text;
}
std::string Sha(const std::string& text) {
  return HexOf(Sha256::Of(text.data(), text.size()));
}

TEST(Sha256, KnownAnswers) {
  EXPECT_EQ(Sha(""), "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855");
  EXPECT_EQ(Sha("abc"), "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
  EXPECT_EQ(Sha("abcdbcdecdefdefgefghfghighijhijkijkljklmklmnlmnomnopnopq"),
            "248d6a61d20638b8e5c026930c3e6039a33ce45964ff2167f6ecedd419db06c1");
  EXPECT_EQ(Sha(std::string(1000000, 'a')), "cdc76e5c9914fb9281a1c7e284d73e67f1809a48a497200e046d39ccc7112cd0");
}

TEST(Sha256, PiecesGiveTheSameAsTheWhole) {
  std::string text;
  for (int i = 0; i < 300; ++i) text += static_cast<char>(i * 7);
  for (size_t n = 0; n <= 200; ++n) {
    for (const size_t step : {size_t{1}, size_t{3}, size_t{63}, size_t{64}, size_t{65}}) {
      Sha256 hash;
      for (size_t i = 0; i < n; i += step) hash.Update(text.data() + i, std::min(step, n - i));
      ASSERT_EQ(HexOf(hash.Finish()), Sha(text.substr(0, n))) << n << " in steps of " << step;
    }
  }
}

TEST(Crc32c, KnownAnswers) {
  EXPECT_EQ(Crc32c("", 0), 0u);
  EXPECT_EQ(Crc32c("123456789", 9), 0xe3069283u);
  std::vector<uint8_t> bytes(32, 0);
  EXPECT_EQ(Crc32c(bytes.data(), 32), 0x8a9136aau);
  bytes.assign(32, 0xff);
  EXPECT_EQ(Crc32c(bytes.data(), 32), 0x62a8ab43u);
  for (size_t i = 0; i < 32; ++i) bytes[i] = static_cast<uint8_t>(i);
  EXPECT_EQ(Crc32c(bytes.data(), 32), 0x46dd794eu);
}

TEST(Crc32c, AgreesWithBitByBitAtEveryLengthAndAlignment) {
  std::vector<uint8_t> bytes(100);
  for (size_t i = 0; i < bytes.size(); ++i) bytes[i] = static_cast<uint8_t>(i * 37 + 11);
  for (size_t from = 0; from < 9; ++from) {
    for (size_t n = 0; n <= 80; ++n) {
      uint32_t crc = ~0u;
      for (size_t i = 0; i < n; ++i) {
        crc ^= bytes[from + i];
        for (int bit = 0; bit < 8; ++bit) crc = crc & 1 ? crc >> 1 ^ 0x82f63b78u : crc >> 1;
      }
      ASSERT_EQ(Crc32c(bytes.data() + from, n), ~crc);
      ASSERT_EQ(Crc32c(bytes.data() + from + n / 3, n - n / 3, Crc32c(bytes.data() + from, n / 3)), ~crc);
    }
  }
}

}  // namespace
}  // namespace kvart

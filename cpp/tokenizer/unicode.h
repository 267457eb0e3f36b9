// UTF-8, character classes and canonical composition (NFC), as the reference tokenizer has them.
// May depend on: tokenizer/unicode_tables.h. Next for the token: splitter.h cuts the normalised text.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace kvart {

enum class CharClass : uint8_t { kOther = 0, kLetter = 1, kNumber = 2, kSpace = 3 };

// Properties of every code point in two stages (about 70 KB), unpacked once from the generated ranges. Immutable.
class CharTable {
 public:
  static const CharTable& Get();

  CharClass Class(uint32_t c) const { return static_cast<CharClass>(Properties(c) & 3); }
  // A normalised text may be cut before c: nothing in front of it combines with it or changes place with it.
  bool StartsNfc(uint32_t c) const { return (Properties(c) & 4) == 0; }
  // Composes away, decomposes, or combines with what stands in front (quick check "no" or "maybe").
  bool ChangesInNfc(uint32_t c) const { return (Properties(c) & 8) != 0; }

 private:
  CharTable();
  uint8_t Properties(uint32_t c) const { return blocks_[(size_t{index_[c >> 8]} << 8) | (c & 0xff)]; }

  uint16_t index_[0x1100];
  std::vector<uint8_t> blocks_;  // [n_blocks][256]
};

// What stands at the front of bytes: length > 0 is a character, 0 is one that is cut off (or nothing at all), and
// length < 0 is -length bytes that form none (the longest front of a character that cannot go on).
struct Utf8Front {
  int length;
  uint32_t code_point;
};
Utf8Front ReadUtf8(std::string_view bytes);

// The character at the front of text that is known to be valid and not empty.
inline uint32_t DecodeValid(const char* p, size_t* length) {
  const auto at = [p](int i) { return static_cast<uint32_t>(static_cast<unsigned char>(p[i])); };
  const uint32_t lead = at(0);
  if (lead < 0x80) return *length = 1, lead;
  if (lead < 0xe0) return *length = 2, (lead & 0x1f) << 6 | (at(1) & 0x3f);
  if (lead < 0xf0) return *length = 3, (lead & 0x0f) << 12 | (at(1) & 0x3f) << 6 | (at(2) & 0x3f);
  return *length = 4, (lead & 0x07) << 18 | (at(1) & 0x3f) << 12 | (at(2) & 0x3f) << 6 | (at(3) & 0x3f);
}
void AppendUtf8(uint32_t code_point, std::string* out);

// The length of the valid front of bytes. *cut_off: the rest is a character whose end is missing, not an error.
size_t ValidUtf8Prefix(std::string_view bytes, bool* cut_off);
// Appends the characters of bytes, U+FFFD for what forms none (one for each longest front, as Python's
// errors="replace"). A character cut off at the end is left alone unless at_end. Returns how many bytes were used.
size_t AppendReplacingInvalid(std::string_view bytes, bool at_end, std::string* out);

// Appends the NFC of valid UTF-8.
void AppendNfc(std::string_view text, std::string* out);
// text itself when it is in NFC already, or else its NFC in *buffer.
std::string_view ToNfc(std::string_view text, std::string* buffer);

}  // namespace kvart

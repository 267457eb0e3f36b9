// UTF-8, character classes and canonical composition (NFC).
// May depend on: tokenizer/unicode_tables.h. Next for the token: splitter.cc cuts the normalised text.
// Algorithms: Unicode Standard, 3.9 (UTF-8, maximal subparts), 3.11 (normalization) and 3.12 (Hangul syllables).
#include "tokenizer/unicode.h"

#include <algorithm>
#include <cstring>
#include <map>

#include "tokenizer/unicode_tables.h"

namespace kvart {
namespace {

namespace t = unicode_tables;

constexpr uint32_t kHangulS = 0xac00, kHangulL = 0x1100, kHangulV = 0x1161, kHangulT = 0x11a7;
constexpr uint32_t kHangulLCount = 19, kHangulVCount = 21, kHangulTCount = 28;
constexpr uint32_t kHangulSCount = kHangulLCount * kHangulVCount * kHangulTCount;

struct Mark {
  uint32_t code_point;
  uint8_t combining_class;
};

uint8_t CombiningClass(uint32_t c) {
  const t::CombiningRange* end = t::kCombining + t::kCombiningCount;
  const t::CombiningRange* it =
      std::lower_bound(t::kCombining, end, c, [](const t::CombiningRange& r, uint32_t x) { return r.last < x; });
  return it != end && it->first <= c ? it->combining_class : 0;
}

void Decompose(uint32_t c, std::vector<Mark>* out) {
  if (c - kHangulS < kHangulSCount) {
    const uint32_t s = c - kHangulS;
    out->push_back({kHangulL + s / (kHangulVCount * kHangulTCount), 0});
    out->push_back({kHangulV + s / kHangulTCount % kHangulVCount, 0});
    if (s % kHangulTCount != 0) out->push_back({kHangulT + s % kHangulTCount, 0});
    return;
  }
  const t::Decomposition* end = t::kDecompositions + t::kDecompositionsCount;
  const t::Decomposition* it = std::lower_bound(t::kDecompositions, end, c,
                                                [](const t::Decomposition& d, uint32_t x) { return d.code_point < x; });
  if (it == end || it->code_point != c) {
    out->push_back({c, CombiningClass(c)});
    return;
  }
  for (int i = 0; i < it->length; ++i) {
    const uint32_t part = t::kDecompositionPool[it->offset + i];
    out->push_back({part, CombiningClass(part)});
  }
}

// The composite of two characters, or 0.
uint32_t Compose(uint32_t first, uint32_t second) {
  if (first - kHangulL < kHangulLCount && second - kHangulV < kHangulVCount) {
    return kHangulS + ((first - kHangulL) * kHangulVCount + (second - kHangulV)) * kHangulTCount;
  }
  if (first - kHangulS < kHangulSCount && (first - kHangulS) % kHangulTCount == 0 && second > kHangulT &&
      second < kHangulT + kHangulTCount) {
    return first + (second - kHangulT);
  }
  const t::Composition* end = t::kCompositions + t::kCompositionsCount;
  const t::Composition* it =
      std::lower_bound(t::kCompositions, end, std::pair(first, second), [](const t::Composition& c, const auto& x) {
        return c.first != x.first ? c.first < x.first : c.second < x.second;
      });
  return it != end && it->first == first && it->second == second ? it->composite : 0;
}

// NFC of a piece that nothing around it touches.
void AppendNfcPiece(std::string_view text, std::string* out) {
  std::vector<Mark> marks;
  for (size_t i = 0, length = 0; i < text.size(); i += length) Decompose(DecodeValid(text.data() + i, &length), &marks);
  const auto by_class = [](const Mark& a, const Mark& b) { return a.combining_class < b.combining_class; };
  for (size_t i = 0; i < marks.size();) {
    if (marks[i].combining_class == 0) {
      ++i;
      continue;
    }
    size_t end = i;
    while (end < marks.size() && marks[end].combining_class != 0) ++end;
    std::stable_sort(marks.begin() + i, marks.begin() + end, by_class);
    i = end;
  }
  size_t kept = 0;
  size_t starter = SIZE_MAX;  // index of the last starter kept
  for (const Mark mark : marks) {
    if (starter != SIZE_MAX) {
      // Blocked when something of the same or a higher class, or another starter, was kept in between.
      const bool blocked = kept - 1 != starter && marks[kept - 1].combining_class >= mark.combining_class;
      const uint32_t composite = blocked ? 0 : Compose(marks[starter].code_point, mark.code_point);
      if (composite != 0) {
        marks[starter].code_point = composite;
        continue;
      }
    }
    if (mark.combining_class == 0) starter = kept;
    marks[kept++] = mark;
  }
  for (size_t i = 0; i < kept; ++i) AppendUtf8(marks[i].code_point, out);
}

// Walks over text that is in NFC. Returns where the first piece that is not begins and in *end where it ends; npos for
// none.
size_t FindNotNfc(std::string_view text, size_t from, size_t* end) {
  const CharTable& table = CharTable::Get();
  size_t start = from;  // of the piece
  uint8_t last_class = 0;
  bool changes = false;
  for (size_t i = from, length = 0; i < text.size(); i += length) {
    // All characters below U+0300 stand for themselves; their lead bytes are below 0xcc.
    if (static_cast<unsigned char>(text[i]) < 0xcc && !changes) {
      length = static_cast<unsigned char>(text[i]) < 0x80 ? 1 : 2;
      start = i;
      last_class = 0;
      continue;
    }
    const uint32_t c = DecodeValid(text.data() + i, &length);
    if (table.StartsNfc(c)) {
      if (changes) return *end = i, start;
      start = i;
      last_class = 0;
      continue;
    }
    const uint8_t combining_class = CombiningClass(c);
    if (table.ChangesInNfc(c) || (combining_class != 0 && combining_class < last_class)) changes = true;
    last_class = combining_class;
  }
  *end = text.size();
  return changes ? start : std::string_view::npos;
}

}  // namespace

CharTable::CharTable() {
  std::map<std::vector<uint8_t>, uint16_t> known;
  std::vector<uint8_t> block(256);
  size_t run = 0;
  for (uint32_t c = 0; c < 0x110000; ++c) {
    while (run + 1 < t::kPropertiesCount && (t::kProperties[run + 1] >> 8) <= c) ++run;
    block[c & 0xff] = static_cast<uint8_t>(t::kProperties[run]);
    if ((c & 0xff) != 0xff) continue;
    const auto [it, added] = known.try_emplace(block, static_cast<uint16_t>(known.size()));
    if (added) blocks_.insert(blocks_.end(), block.begin(), block.end());
    index_[c >> 8] = it->second;
  }
}

const CharTable& CharTable::Get() {
  static const CharTable table;
  return table;
}

Utf8Front ReadUtf8(std::string_view bytes) {
  if (bytes.empty()) return {0, 0};
  const auto at = [bytes](size_t i) { return static_cast<unsigned char>(bytes[i]); };
  const unsigned char lead = at(0);
  if (lead < 0x80) return {1, lead};
  if (lead < 0xc2 || lead > 0xf4) return {-1, 0};
  const int length = lead < 0xe0 ? 2 : lead < 0xf0 ? 3 : 4;
  // The second byte alone is narrowed: no overlong forms, no surrogates, nothing above U+10FFFF.
  const unsigned char low = lead == 0xe0 ? 0xa0 : lead == 0xf0 ? 0x90 : 0x80;
  const unsigned char high = lead == 0xed ? 0x9f : lead == 0xf4 ? 0x8f : 0xbf;
  for (int i = 1; i < length; ++i) {
    if (static_cast<size_t>(i) >= bytes.size()) return {0, 0};
    if (at(i) < (i == 1 ? low : 0x80) || at(i) > (i == 1 ? high : 0xbf)) return {-i, 0};
  }
  size_t same = 0;
  return {length, DecodeValid(bytes.data(), &same)};
}

void AppendUtf8(uint32_t c, std::string* out) {
  if (c < 0x80) {
    out->push_back(static_cast<char>(c));
    return;
  }
  if (c < 0x800) {
    out->push_back(static_cast<char>(0xc0 | c >> 6));
  } else {
    if (c < 0x10000) {
      out->push_back(static_cast<char>(0xe0 | c >> 12));
    } else {
      out->push_back(static_cast<char>(0xf0 | c >> 18));
      out->push_back(static_cast<char>(0x80 | (c >> 12 & 0x3f)));
    }
    out->push_back(static_cast<char>(0x80 | (c >> 6 & 0x3f)));
  }
  out->push_back(static_cast<char>(0x80 | (c & 0x3f)));
}

size_t ValidUtf8Prefix(std::string_view bytes, bool* cut_off) {
  size_t i = 0;
  while (i < bytes.size()) {
    uint64_t eight;
    if (bytes.size() - i >= 8 && (std::memcpy(&eight, bytes.data() + i, 8), (eight & 0x8080808080808080u) == 0)) {
      i += 8;
      continue;
    }
    const Utf8Front front = ReadUtf8(bytes.substr(i));
    if (front.length <= 0) {
      *cut_off = front.length == 0;
      return i;
    }
    i += static_cast<size_t>(front.length);
  }
  *cut_off = false;
  return i;
}

size_t AppendReplacingInvalid(std::string_view bytes, bool at_end, std::string* out) {
  size_t i = 0;
  while (i < bytes.size()) {
    const Utf8Front front = ReadUtf8(bytes.substr(i));
    if (front.length > 0) {
      out->append(bytes.substr(i, static_cast<size_t>(front.length)));
      i += static_cast<size_t>(front.length);
    } else {
      if (front.length == 0 && !at_end) return i;
      out->append("\xef\xbf\xbd");
      i += front.length == 0 ? bytes.size() - i : static_cast<size_t>(-front.length);
    }
  }
  return i;
}

void AppendNfc(std::string_view text, std::string* out) {
  for (size_t done = 0; done < text.size();) {
    size_t end = 0;
    const size_t start = FindNotNfc(text, done, &end);
    if (start == std::string_view::npos) {
      out->append(text.substr(done));
      return;
    }
    out->append(text.substr(done, start - done));
    AppendNfcPiece(text.substr(start, end - start), out);
    done = end;
  }
}

std::string_view ToNfc(std::string_view text, std::string* buffer) {
  size_t end = 0;
  if (FindNotNfc(text, 0, &end) == std::string_view::npos) return text;
  buffer->clear();
  AppendNfc(text, buffer);
  return *buffer;
}

}  // namespace kvart

// The qwen2 pattern as a matcher.
// May depend on: tokenizer/unicode.h. Next for the token: bpe.cc merges the bytes of each piece.
#include "tokenizer/splitter.h"

namespace kvart {
namespace {

bool IsNewline(uint32_t c) {
  return c == '\r' || c == '\n';
}

// Lower case for the letters of the contractions. (?i) folds as Unicode does, so U+017F, the long s, counts as s.
uint32_t Fold(uint32_t c) {
  return c >= 'A' && c <= 'Z' ? c + 32 : c == 0x17f ? 's' : c;
}

constexpr size_t kUndecided = SIZE_MAX;

// The length of a contraction at the front of text (which begins with '), 0 for none, kUndecided when more is needed.
size_t Contraction(std::string_view text, bool at_end) {
  if (text.size() == 1) return at_end ? 0 : kUndecided;
  size_t length = 0;
  const uint32_t first = Fold(DecodeValid(text.data() + 1, &length));
  if (first == 's' || first == 't' || first == 'm' || first == 'd') return 1 + length;
  if (first != 'r' && first != 'v' && first != 'l') return 0;
  if (text.size() == 2) return at_end ? 0 : kUndecided;
  const uint32_t second = Fold(static_cast<unsigned char>(text[2]));
  return second == (first == 'l' ? 'l' : 'e') ? 3 : 0;
}

}  // namespace

size_t Splitter::Found(size_t length) {
  phase_ = Phase::kStart;
  scanned_ = newline_end_ = last_char_ = 0;
  return length;
}

bool Splitter::Skip(std::string_view text, CharClass wanted, bool at_end) {
  while (scanned_ < text.size()) {
    size_t length = 0;
    if (table_->Class(DecodeValid(text.data() + scanned_, &length)) != wanted) return true;
    scanned_ += length;
  }
  return at_end;
}

size_t Splitter::Begin(std::string_view text, bool at_end) {
  if (text.empty()) return 0;
  size_t length = 0;
  const uint32_t c = DecodeValid(text.data(), &length);
  const CharClass c_class = table_->Class(c);
  if (c_class == CharClass::kNumber) return Found(length);
  if (c_class == CharClass::kLetter) {
    phase_ = Phase::kLetters;
  } else if (IsNewline(c)) {
    phase_ = Phase::kSpaces;
  } else {
    if (c == '\'') {
      const size_t contraction = Contraction(text, at_end);
      if (contraction == kUndecided) return 0;
      if (contraction != 0) return Found(contraction);
    }
    if (length == text.size() && !at_end) return 0;
    CharClass next = CharClass::kNumber;  // at the end: as before anything that does not join
    size_t next_length = 0;
    if (length < text.size()) next = table_->Class(DecodeValid(text.data() + length, &next_length));
    if (next == CharClass::kLetter) {
      phase_ = Phase::kLetters;
    } else if (c_class == CharClass::kOther || (c == ' ' && next == CharClass::kOther)) {
      phase_ = Phase::kMarks;
    } else {
      phase_ = Phase::kSpaces;
    }
  }
  scanned_ = phase_ == Phase::kSpaces ? 0 : length;
  return Next(text, at_end);
}

size_t Splitter::EndSpaces(std::string_view text, bool at_end) {
  while (scanned_ < text.size()) {
    size_t length = 0;
    const uint32_t c = DecodeValid(text.data() + scanned_, &length);
    if (table_->Class(c) != CharClass::kSpace) break;
    last_char_ = scanned_;
    scanned_ += length;
    if (IsNewline(c)) newline_end_ = scanned_;
  }
  if (scanned_ == text.size() && !at_end) return 0;
  if (newline_end_ != 0) return Found(newline_end_);
  // In front of something else the last blank is left to it, unless it is the only one.
  if (scanned_ < text.size() && last_char_ != 0) return Found(last_char_);
  return Found(scanned_);
}

size_t Splitter::Next(std::string_view text, bool at_end) {
  switch (phase_) {
    case Phase::kStart: return Begin(text, at_end);
    case Phase::kLetters: return Skip(text, CharClass::kLetter, at_end) ? Found(scanned_) : 0;
    case Phase::kSpaces: return EndSpaces(text, at_end);
    case Phase::kMarks:
      if (!Skip(text, CharClass::kOther, at_end)) return 0;
      phase_ = Phase::kNewlines;
      [[fallthrough]];
    case Phase::kNewlines:
      while (scanned_ < text.size() && IsNewline(static_cast<unsigned char>(text[scanned_]))) ++scanned_;
      return scanned_ < text.size() || at_end ? Found(scanned_) : 0;
  }
  return 0;
}

}  // namespace kvart

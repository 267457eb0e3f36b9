// Cuts normalised text into the pieces that byte-pair merging may not cross: the qwen2 pattern, written out by hand.
// May depend on: tokenizer/unicode.h. Next for the token: bpe.h merges the bytes of each piece.
#pragma once

#include <cstddef>
#include <string_view>

#include "tokenizer/unicode.h"

namespace kvart {

// The pattern, its alternatives tried in this order:
//   (?i:'s|'t|'re|'ve|'m|'ll|'d)  [^\r\n\p{L}\p{N}]?\p{L}+  \p{N}   ?[^\s\p{L}\p{N}]+[\r\n]*
//   \s*[\r\n]+  \s+(?!\S)  \s+
// Every character is in some piece. Each is looked at a fixed number of times, also when the text comes in parts.
class Splitter {
 public:
  // The length of the piece that text begins with; 0 when it is empty or, unless at_end, when later text may still
  // change the answer. After 0 call again with the same text made longer: the search goes on where it stopped.
  size_t Next(std::string_view text, bool at_end);

 private:
  enum class Phase { kStart, kLetters, kMarks, kNewlines, kSpaces };

  size_t Begin(std::string_view text, bool at_end);
  // Moves scanned_ over characters of a class; true when the end of the run was seen.
  bool Skip(std::string_view text, CharClass wanted, bool at_end);
  size_t EndSpaces(std::string_view text, bool at_end);
  size_t Found(size_t length);

  const CharTable* table_ = &CharTable::Get();
  Phase phase_ = Phase::kStart;
  size_t scanned_ = 0;
  size_t newline_end_ = 0;  // in a run of spaces: behind its last \r or \n
  size_t last_char_ = 0;    // in a run of spaces: where its last character begins
};

}  // namespace kvart

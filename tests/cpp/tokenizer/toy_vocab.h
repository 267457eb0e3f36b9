// A small vocabulary for tests: all bytes, a few merges, a few added tokens.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "tokenizer/unicode.h"
#include "tokenizer/vocab.h"

namespace kvart {

// Bytes as byte-level BPE spells them.
inline std::string Spell(std::string_view bytes) {
  std::string out;
  for (const char c : bytes) {
    const auto b = static_cast<unsigned char>(c);
    uint32_t next = 0x100;
    bool printable = false;
    for (uint32_t i = 0; i <= b; ++i) {
      printable = (i > 0x20 && i < 0x7f) || (i > 0xa0 && i != 0xad);
      if (!printable && i < b) ++next;
    }
    AppendUtf8(printable ? b : next, &out);
  }
  return out;
}

// Ids: 0-255 the bytes, then the merges' tokens, then <|endoftext|>, <|im_start|>, <|im_end|> (control), <think> and
// <think>> (user-defined), one of padding.
struct ToyVocab {
  ToyVocab() {
    for (int b = 0; b < 256; ++b) Token(Spell(std::string(1, static_cast<char>(b))), 1);
    for (const auto& [left, right] : std::vector<std::pair<std::string, std::string>>{{" ", " "},
                                                                                      {"a", "a"},
                                                                                      {"aa", "aa"},
                                                                                      {"h", "e"},
                                                                                      {"l", "l"},
                                                                                      {"he", "ll"},
                                                                                      {"hell", "o"},
                                                                                      {" ", "hello"},
                                                                                      {"\xc3", "\xa9"},
                                                                                      {"a", "b"},
                                                                                      {"b", "a"},
                                                                                      {"aaaa", "aaaa"}}) {
      Token(Spell(left + right), 1);
      merges.push_back(Spell(left) + " " + Spell(right));
    }
    Token("<|endoftext|>", 3);
    Token("<|im_start|>", 3);
    Token("<|im_end|>", 3);
    Token("<think>", 4);
    Token("<think>>", 4);
    Token("[PAD" + std::to_string(tokens.size()) + "]", 5);
  }
  void Token(std::string text, int64_t type) {
    tokens.push_back(std::move(text));
    types.push_back(type);
  }
  TokenizerData Data() const {
    TokenizerData data;
    data.tokens.assign(tokens.begin(), tokens.end());
    data.token_types = types;
    data.merges.assign(merges.begin(), merges.end());
    return data;
  }
  std::vector<std::string> tokens;
  std::vector<int64_t> types;
  std::vector<std::string> merges;
};

}  // namespace kvart

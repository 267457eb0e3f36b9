// The vocabulary: the bytes and the kind of every token, and the search for added tokens in a text.
// May depend on: base, quant, gguf. Next for the token: tokenizer.cc encodes and decodes with it.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/status.h"
#include "tokenizer/bpe.h"

namespace kvart {

// What a tokenizer is made of, as the metadata has it. The views are needed only while it is built.
struct TokenizerData {
  std::vector<std::string_view> tokens;  // plain ones in the printable alphabet of byte-level BPE ("Ġthe")
  std::vector<int64_t> token_types;      // [n_tokens], see TokenType
  std::vector<std::string_view> merges;  // "left right", best first
  int64_t eos_id = -1;                   // -1: the file has none
  int64_t eot_id = -1;
  int64_t bos_id = -1;
  int64_t padding_id = -1;
  std::string chat_template;
};

// tokenizer.ggml.token_type of the GGUF specification.
enum class TokenType : uint8_t { kNormal = 1, kUnknown = 2, kControl = 3, kUserDefined = 4, kUnused = 5, kByte = 6 };

// Where an added token stands in a text.
struct AddedMatch {
  size_t begin;
  size_t length;
  int32_t id;
};

// Immutable after Init.
class Vocab {
 public:
  // Takes over the tokens and fills *bpe with the merges. kCorrupt names the key and what is wrong.
  Status Init(const TokenizerData& data, Bpe* bpe);

  int32_t size() const { return static_cast<int32_t>(types_.size()); }
  bool Has(int32_t id) const { return id >= 0 && id < size(); }
  TokenType Type(int32_t id) const { return types_[static_cast<size_t>(id)]; }
  bool IsAdded(int32_t id) const {
    return Has(id) && (Type(id) == TokenType::kControl || Type(id) == TokenType::kUserDefined);
  }
  // Empty for padding (unused) tokens and ids out of range.
  std::string_view Bytes(int32_t id) const;
  int32_t Find(std::string_view bytes) const;       // -1 for none; an added token goes before a plain one
  int32_t FindPlain(std::string_view bytes) const;  // -1 for none

  // The first added token in text at or after from, the longest that begins there; length 0 for none. Unless at_end,
  // *undecided is the first place where later text may still make or change a match; nothing behind it is reported.
  AddedMatch FindAdded(std::string_view text, size_t from, bool at_end, size_t* undecided) const;
  // The longest added token that text begins with. *open: more text could make it a longer one.
  AddedMatch MatchAdded(std::string_view text, bool* open) const;

 private:
  Status InitTokens(const TokenizerData& data);
  Status InitMerges(const std::vector<std::string_view>& merges, Bpe* bpe) const;
  bool InsertPlain(int32_t id);
  size_t FirstSlot(std::string_view bytes) const;

  std::string pool_;              // the bytes of all tokens, one after the other
  std::vector<uint64_t> ends_;    // [n] where each ends in pool_
  std::vector<TokenType> types_;  // [n]
  std::vector<int32_t> slots_;  // plain tokens by hash of their bytes, -1 for empty; a power of two, at most half full
  std::vector<std::pair<std::string_view, int32_t>> added_;  // sorted by bytes
  bool begins_added_[256] = {};
};

}  // namespace kvart

// What a Tokenizer holds, shared by the files that implement it.
// May depend on: base, quant, gguf. Next for the token: tokenizer.cc, stream.cc and segments.cc encode with it.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "tokenizer/bpe.h"
#include "tokenizer/tokenizer.h"
#include "tokenizer/vocab.h"

namespace kvart {

struct Tokenizer::Impl {
  Vocab vocab;
  Bpe bpe;
  std::vector<int32_t> end_ids;
  std::string chat_template;
  std::string pre = "qwen2";

  // Appends the ids of a run of valid UTF-8 between added tokens: normalised, split and merged on its own.
  void EncodeRun(std::string_view text, std::vector<int32_t>* out) const;
  // Valid UTF-8 of a length that the merger takes, or InvalidArgument.
  static Status CheckText(std::string_view text);
};

Status InvalidUtf8(std::string_view bytes, uint64_t offset, bool cut_off);  // the bytes from the offending one on

}  // namespace kvart

// Encodes a chat: the template's own text with added tokens parsed, what people typed without.
// May depend on: base, quant, gguf. Next for the token: engine/session.h hands the ids to the decoder.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"
#include "tokenizer/tokenizer.h"

namespace kvart {

// A part of a rendered chat. Only in template text do added tokens count; "<|im_end|>" typed by a user ends no turn.
struct ChatSegment {
  std::string text;
  bool template_text = false;
};

// The ids of all segments as one text. Where no user's text holds an added token they are those of
// Encode(whole text, AddedTokens::kParse): normalising, splitting and merging go on across the borders of segments.
// An added token counts when all of it is template text.
Result<std::vector<int32_t>> EncodeSegments(const Tokenizer& tokenizer, std::span<const ChatSegment> segments);

}  // namespace kvart

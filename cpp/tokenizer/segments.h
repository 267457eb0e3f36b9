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

// Segments of a text in which the renderer was given user text between the marks open and close (a pair that occurs in
// nobody's text, such as U+FDD0 and U+FDD1). The marks go. A template may cut a marked text (strip, split), so that a mark
// stands alone; then too much is taken for user text rather than too little:
//  - a close alone: user text begins at the last mark, less a border of turns (<|im_end|>\n<|im_start|>role\n) right there;
//  - an open alone: user text goes to the next open or the end, less a border of turns right there (at the end with the
//    prompt for an answer).
// Text that lost both marks cannot be told from the template's: keep such filters away from what is marked.
std::vector<ChatSegment> SplitMarked(std::string_view text, std::string_view open, std::string_view close);
Result<std::vector<int32_t>> EncodeMarked(const Tokenizer& tokenizer, std::string_view text, std::string_view open,
                                          std::string_view close);

}  // namespace kvart

// Encoding of text of which only parts may hold added tokens.
// May depend on: base, quant, gguf. Next for the token: engine/session.h hands the ids to the decoder.
#include "tokenizer/segments.h"

#include <algorithm>

#include "tokenizer/tokenizer_impl.h"

namespace kvart {

Result<std::vector<int32_t>> EncodeSegments(const Tokenizer& tokenizer, std::span<const ChatSegment> segments) {
  std::string text;
  for (const ChatSegment& segment : segments) text += segment.text;
  KVART_RETURN_IF_ERROR(Tokenizer::Impl::CheckText(text));
  const Tokenizer::Impl& impl = *tokenizer.impl_;

  std::vector<int32_t> ids;
  size_t run = 0;    // where the run since the last added token begins
  size_t begin = 0;  // of this stretch of template text, over neighbouring segments
  for (size_t i = 0; i < segments.size();) {
    size_t end = begin;
    const bool template_text = segments[i].template_text;
    while (i < segments.size() && (segments[i].template_text == template_text || segments[i].text.empty())) {
      end += segments[i++].text.size();
    }
    const std::string_view stretch = std::string_view(text).substr(0, end);
    size_t undecided = 0;
    while (template_text) {
      const AddedMatch match = impl.vocab.FindAdded(stretch, begin, true, &undecided);
      if (match.length == 0) break;
      impl.EncodeRun(stretch.substr(run, match.begin - run), &ids);
      ids.push_back(match.id);
      run = begin = match.begin + match.length;
    }
    begin = end;
  }
  impl.EncodeRun(std::string_view(text).substr(run), &ids);
  return ids;
}

namespace {

constexpr std::string_view kStart = "<|im_start|>", kEnd = "<|im_end|>";
constexpr size_t kNone = std::string_view::npos;

// The length of "<|im_start|>role\n" at the front of text, 0 for none.
size_t TurnHead(std::string_view text) {
  if (!text.starts_with(kStart)) return 0;
  size_t i = kStart.size();
  while (i < text.size() && text[i] >= 'a' && text[i] <= 'z') ++i;
  return i > kStart.size() && i < text.size() && text[i] == '\n' ? i + 1 : 0;
}

// The length of a border of turns at the front of text (a head alone where the chat begins), 0 for none.
size_t BorderAtFront(std::string_view text, bool chat_begins) {
  if (chat_begins) return TurnHead(text);
  if (!text.starts_with(kEnd) || text.substr(kEnd.size(), 1) != "\n") return 0;
  const size_t head = TurnHead(text.substr(kEnd.size() + 1));
  return head == 0 ? 0 : kEnd.size() + 1 + head;
}

// Where a border of turns begins that goes to the end of text; text.size() for none.
size_t BorderAtBack(std::string_view text, bool chat_ends) {
  const size_t begin = text.rfind(kEnd);
  if (begin == kNone) return text.size();
  std::string_view rest = text.substr(begin + kEnd.size());
  if (!rest.starts_with('\n')) return text.size();
  rest.remove_prefix(1);
  rest.remove_prefix(TurnHead(rest));
  if (chat_ends) {
    // The prompt for an answer may open its thinking, or open and close it.
    for (const std::string_view tag : {"<think>\n", "\n</think>\n\n"}) {
      if (rest.starts_with(tag)) rest.remove_prefix(tag.size());
    }
  }
  return rest.empty() ? begin : text.size();
}

}  // namespace

std::vector<ChatSegment> SplitMarked(std::string_view text, std::string_view open, std::string_view close) {
  std::vector<ChatSegment> segments;
  const auto add = [&segments](std::string_view part, bool template_text) {
    if (!part.empty()) segments.push_back({std::string(part), template_text});
  };
  bool in_user = false;
  bool chat_begins = true;
  while (!text.empty()) {
    const size_t next_open = open.empty() ? kNone : text.find(open);
    const size_t next_close = close.empty() ? kNone : text.find(close);
    const size_t mark = std::min(next_open, next_close);
    const std::string_view part = text.substr(0, mark);
    const bool opens = next_open < next_close;
    if (mark == kNone || opens) {
      const size_t border = in_user ? BorderAtBack(part, mark == kNone) : 0;
      add(part.substr(0, border), false);
      add(part.substr(border), true);
      in_user = opens;
    } else if (in_user) {
      add(part, false);
      in_user = false;
    } else {
      const size_t border = BorderAtFront(part, chat_begins);
      add(part.substr(0, border), true);
      add(part.substr(border), false);
    }
    if (mark == kNone) break;
    chat_begins = false;
    text.remove_prefix(mark + (opens ? open.size() : close.size()));
  }
  return segments;
}

Result<std::vector<int32_t>> EncodeMarked(const Tokenizer& tokenizer, std::string_view text, std::string_view open,
                                          std::string_view close) {
  return EncodeSegments(tokenizer, SplitMarked(text, open, close));
}

}  // namespace kvart

// Encoding of text of which only parts may hold added tokens.
// May depend on: base, quant, gguf. Next for the token: engine/session.h hands the ids to the decoder.
#include "tokenizer/segments.h"

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

}  // namespace kvart

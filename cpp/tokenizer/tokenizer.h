// Text to token ids and back: byte-level BPE of the Qwen family, from GGUF metadata.
// May depend on: base, quant, gguf. Next for the token: engine/session.h hands the ids to the decoder.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"
#include "gguf/gguf.h"
#include "tokenizer/vocab.h"

namespace kvart {

// Added tokens ("<|im_end|>", "<think>") in the text of Encode: parsed to their ids, or spelt as plain BPE like any
// text.
enum class AddedTokens { kParse, kPlain };

struct ChatSegment;  // tokenizer/segments.h

// Immutable after construction and free of hidden state: any number of threads may use one.
class Tokenizer {
 public:
  // Reads and checks the tokenizer.* metadata; the file may go afterwards. NotFound or InvalidArgument for a key that
  // is missing or of the wrong type, kUnsupported for another tokenizer, kCorrupt for lists that do not fit together.
  static Result<std::unique_ptr<const Tokenizer>> FromGguf(const GgufFile& file);
  static Result<std::unique_ptr<const Tokenizer>> FromData(const TokenizerData& data);
  ~Tokenizer();

  // Equal to the Hugging Face tokenizer (NFC, the family's split pattern, byte-level BPE; no token is put in front).
  // InvalidArgument for invalid UTF-8, naming the byte offset. O(n log n) for any text.
  Result<std::vector<int32_t>> Encode(std::string_view utf8, AddedTokens added) const;

  // The bytes of one token; empty for ids out of range and for padding. A token may hold part of a character.
  std::string_view TokenBytes(int32_t id) const;
  // Concatenated bytes; skip_control leaves out control tokens ("<|im_end|>"). Not necessarily valid UTF-8.
  std::string Decode(std::span<const int32_t> ids, bool skip_control) const;

  int32_t n_vocab() const;
  int32_t FindToken(std::string_view text) const;  // an added token's or plain token's id, -1 when there is none
  bool IsControl(int32_t id) const;
  bool IsAdded(int32_t id) const;  // control or user-defined
  // Ids that end a turn: eos, eot, <|im_end|>, <|endoftext|> where present.
  const std::vector<int32_t>& end_ids() const;
  bool IsEnd(int32_t id) const;
  // The file's chat template (jinja2), empty when it has none.
  const std::string& chat_template() const;
  const std::string& pre() const;  // "qwen2"

 private:
  Tokenizer();
  struct Impl;
  friend class StreamEncoder;
  friend Result<std::vector<int32_t>> EncodeSegments(const Tokenizer&, std::span<const ChatSegment>);
  std::unique_ptr<Impl> impl_;
};

// Encodes text that arrives in pieces: the ids of all pieces together are those of the whole text. One thread at a
// time. Holds back only what later text may still change: a character that is cut off or may combine, the beginning of
// an added token, the last piece of the split pattern.
class StreamEncoder {
 public:
  StreamEncoder(const Tokenizer& tokenizer, AddedTokens added);  // the tokenizer must outlive it
  ~StreamEncoder();
  // Bytes may end inside a character. Appends the ids that can no longer change to *out. After an error (invalid UTF-8,
  // with its offset in the whole text) every call returns it, up to and with Finish.
  Status Push(std::string_view bytes, std::vector<int32_t>* out);
  Status Finish(std::vector<int32_t>* out);  // the rest; then ready for another text, also after an error

 private:
  struct State;
  std::unique_ptr<State> state_;
};

// Decodes ids as they come, yielding whole characters only. One thread at a time.
class StreamDecoder {
 public:
  explicit StreamDecoder(const Tokenizer& tokenizer, bool skip_control = true);  // the tokenizer must outlive it
  std::string Push(int32_t id);  // the characters that are complete now; invalid bytes come out as U+FFFD
  std::string Finish();          // what is left, incomplete bytes as U+FFFD

 private:
  const Tokenizer& tokenizer_;
  bool skip_control_;
  std::string pending_;
};

}  // namespace kvart

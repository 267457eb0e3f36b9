// Encoding and decoding in pieces.
// May depend on: base, quant, gguf. Next for the token: engine/session.h hands the ids to the decoder.
#include <algorithm>

#include "tokenizer/splitter.h"
#include "tokenizer/tokenizer_impl.h"
#include "tokenizer/unicode.h"

namespace kvart {

// Three stages, each holding back what it cannot decide yet: bytes until added tokens are told from text, text until
// nothing more can combine with it, normalised text until its pieces are complete.
struct StreamEncoder::State {
  State(const Tokenizer::Impl& tokenizer, AddedTokens added_tokens) : impl(tokenizer), added(added_tokens) {}

  const Tokenizer::Impl& impl;
  const AddedTokens added;
  std::string bytes;
  std::string raw;
  std::string text;
  size_t raw_seen = 0;    // how far raw was searched for a place to cut
  size_t raw_cut = 0;     // the last such place
  Splitter splitter;      // at the front of text
  uint64_t consumed = 0;  // bytes of the whole text in front of bytes
  Status error;

  Status Take(bool at_end, std::vector<int32_t>* out);
  void AddRun(std::string_view part, bool run_ends, std::vector<int32_t>* out);
  void Reset();
};

void StreamEncoder::State::Reset() {
  bytes.clear();
  raw.clear();
  text.clear();
  raw_seen = raw_cut = 0;
  splitter = Splitter();
  consumed = 0;
  error = Status();
}

void StreamEncoder::State::AddRun(std::string_view part, bool run_ends, std::vector<int32_t>* out) {
  raw += part;
  for (size_t length = 0; raw_seen < raw.size(); raw_seen += length) {
    const uint32_t c = DecodeValid(raw.data() + raw_seen, &length);
    if (CharTable::Get().StartsNfc(c)) raw_cut = raw_seen;
  }
  if (run_ends) raw_cut = raw.size();
  AppendNfc(std::string_view(raw).substr(0, raw_cut), &text);
  raw.erase(0, raw_cut);
  raw_seen -= raw_cut;
  raw_cut = 0;

  std::string_view rest = text;
  while (const size_t length = splitter.Next(rest, run_ends)) {
    impl.bpe.Encode(rest.substr(0, length), out);
    rest.remove_prefix(length);
  }
  text.erase(0, text.size() - rest.size());
}

Status StreamEncoder::State::Take(bool at_end, std::vector<int32_t>* out) {
  bool cut_off = false;
  const size_t valid = ValidUtf8Prefix(bytes, &cut_off);
  if (valid < bytes.size() && (at_end || !cut_off)) {
    return InvalidUtf8(std::string_view(bytes).substr(valid), consumed + valid, cut_off);
  }
  const std::string_view whole = std::string_view(bytes).substr(0, valid);
  size_t done = 0;
  size_t end = valid;
  while (added == AddedTokens::kParse) {
    size_t undecided = 0;
    const AddedMatch match = impl.vocab.FindAdded(whole, done, at_end, &undecided);
    end = std::min(valid, undecided);
    if (match.length == 0) break;
    AddRun(whole.substr(done, match.begin - done), true, out);
    out->push_back(match.id);
    done = match.begin + match.length;
  }
  AddRun(whole.substr(done, end - done), at_end, out);
  // The merger counts the bytes of one piece in 32 bits; Encode has the same limit.
  if (raw.size() > INT32_MAX || text.size() > INT32_MAX) {
    return Errorf(StatusCode::kInvalidArgument,
                  "text has a piece of more than 2^31 - 1 bytes without a place to split");
  }
  consumed += end;
  bytes.erase(0, end);
  return {};
}

StreamEncoder::StreamEncoder(const Tokenizer& tokenizer, AddedTokens added)
    : state_(std::make_unique<State>(*tokenizer.impl_, added)) {}
StreamEncoder::~StreamEncoder() = default;

Status StreamEncoder::Push(std::string_view bytes, std::vector<int32_t>* out) {
  if (!state_->error.ok()) return state_->error;
  // In portions, so that a large text is not held twice.
  constexpr size_t kPortion = size_t{1} << 20;
  while (!bytes.empty() && state_->error.ok()) {
    state_->bytes += bytes.substr(0, kPortion);
    bytes.remove_prefix(std::min(bytes.size(), kPortion));
    state_->error = state_->Take(false, out);
  }
  return state_->error;
}

Status StreamEncoder::Finish(std::vector<int32_t>* out) {
  Status status = state_->error;
  if (status.ok()) status = state_->Take(true, out);
  state_->Reset();
  return status;
}

StreamDecoder::StreamDecoder(const Tokenizer& tokenizer, bool skip_control)
    : tokenizer_(tokenizer), skip_control_(skip_control) {}

std::string StreamDecoder::Push(int32_t id) {
  if (skip_control_ && tokenizer_.IsControl(id)) return {};
  pending_ += tokenizer_.TokenBytes(id);
  std::string out;
  pending_.erase(0, AppendReplacingInvalid(pending_, false, &out));
  return out;
}

std::string StreamDecoder::Finish() {
  std::string out;
  AppendReplacingInvalid(pending_, true, &out);
  pending_.clear();
  return out;
}

}  // namespace kvart

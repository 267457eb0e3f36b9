// The tokenizer itself: built from metadata, text to ids and back.
// May depend on: base, quant, gguf. Next for the token: engine/session.h hands the ids to the decoder.
#include "tokenizer/tokenizer.h"

#include <algorithm>

#include "tokenizer/splitter.h"
#include "tokenizer/tokenizer_impl.h"
#include "tokenizer/unicode.h"

namespace kvart {
namespace {

constexpr const char* kModelKey = "tokenizer.ggml.model";
constexpr const char* kPreKey = "tokenizer.ggml.pre";

Status WantString(const GgufFile& file, const char* key, std::string_view wanted) {
  KVART_ASSIGN_OR_RETURN(const std::string found, file.GetString(key));
  if (found == wanted) return {};
  return Errorf(StatusCode::kUnsupported, "%s: found \"%.60s\", wanted \"%s\" (byte-level BPE of the Qwen family)", key,
                found.c_str(), std::string(wanted).c_str());
}

// An id that a file may leave out (-1).
Status GetOptionalId(const GgufFile& file, const char* key, int64_t* id) {
  *id = -1;
  if (file.Find(key) == nullptr) return {};
  KVART_ASSIGN_OR_RETURN(const uint64_t value, file.GetUint(key));
  // 2^32 - 1 is how some writers say "none".
  if (value != UINT32_MAX) *id = static_cast<int64_t>(std::min<uint64_t>(value, INT64_MAX));
  return {};
}

}  // namespace

Tokenizer::Tokenizer() : impl_(std::make_unique<Impl>()) {}
Tokenizer::~Tokenizer() = default;

Result<std::unique_ptr<const Tokenizer>> Tokenizer::FromGguf(const GgufFile& file) {
  KVART_RETURN_IF_ERROR(WantString(file, kModelKey, "gpt2"));
  KVART_RETURN_IF_ERROR(WantString(file, kPreKey, "qwen2"));
  TokenizerData data;
  KVART_ASSIGN_OR_RETURN(data.tokens, file.GetStrings("tokenizer.ggml.tokens"));
  KVART_ASSIGN_OR_RETURN(data.token_types, file.GetInts("tokenizer.ggml.token_type"));
  KVART_ASSIGN_OR_RETURN(data.merges, file.GetStrings("tokenizer.ggml.merges"));
  KVART_RETURN_IF_ERROR(GetOptionalId(file, "tokenizer.ggml.eos_token_id", &data.eos_id));
  KVART_RETURN_IF_ERROR(GetOptionalId(file, "tokenizer.ggml.eot_token_id", &data.eot_id));
  KVART_RETURN_IF_ERROR(GetOptionalId(file, "tokenizer.ggml.bos_token_id", &data.bos_id));
  KVART_RETURN_IF_ERROR(GetOptionalId(file, "tokenizer.ggml.padding_token_id", &data.padding_id));
  if (file.Find("tokenizer.chat_template") != nullptr) {
    KVART_ASSIGN_OR_RETURN(data.chat_template, file.GetString("tokenizer.chat_template"));
  }
  return FromData(data);
}

Result<std::unique_ptr<const Tokenizer>> Tokenizer::FromData(const TokenizerData& data) {
  std::unique_ptr<Tokenizer> tokenizer(new Tokenizer());
  Impl& impl = *tokenizer->impl_;
  KVART_RETURN_IF_ERROR(impl.vocab.Init(data, &impl.bpe));
  impl.chat_template = data.chat_template;
  const auto add_end = [&impl](int64_t id) {
    if (id >= 0 && !std::count(impl.end_ids.begin(), impl.end_ids.end(), id)) {
      impl.end_ids.push_back(static_cast<int32_t>(id));
    }
  };
  add_end(data.eos_id);
  add_end(data.eot_id);
  for (const char* text : {"<|im_end|>", "<|endoftext|>"}) {
    const int32_t id = impl.vocab.Find(text);
    if (id >= 0 && impl.vocab.Type(id) == TokenType::kControl) add_end(id);
  }
  return std::unique_ptr<const Tokenizer>(std::move(tokenizer));
}

Status InvalidUtf8(std::string_view bytes, uint64_t offset, bool cut_off) {
  const auto at = static_cast<unsigned long long>(offset);
  const unsigned byte = static_cast<unsigned char>(bytes[0]);
  Status status = cut_off ? Errorf(StatusCode::kInvalidArgument,
                                   "text is not valid UTF-8: the character at byte %llu (0x%02x) is cut off", at, byte)
                          : Errorf(StatusCode::kInvalidArgument,
                                   "text is not valid UTF-8: byte %llu (0x%02x) begins no character", at, byte);
  return Status(status.code(), status.message(), "", static_cast<int64_t>(offset));
}

Status Tokenizer::Impl::CheckText(std::string_view text) {
  if (text.size() > INT32_MAX) {
    return Errorf(StatusCode::kInvalidArgument, "text has %zu bytes; at most 2^31 - 1 can be encoded at once",
                  text.size());
  }
  bool cut_off = false;
  const size_t valid = ValidUtf8Prefix(text, &cut_off);
  if (valid < text.size()) return InvalidUtf8(text.substr(valid), valid, cut_off);
  return {};
}

void Tokenizer::Impl::EncodeRun(std::string_view text, std::vector<int32_t>* out) const {
  std::string buffer;
  std::string_view rest = ToNfc(text, &buffer);
  Splitter splitter;
  while (const size_t length = splitter.Next(rest, true)) {
    bpe.Encode(rest.substr(0, length), out);
    rest.remove_prefix(length);
  }
}

Result<std::vector<int32_t>> Tokenizer::Encode(std::string_view utf8, AddedTokens added) const {
  KVART_RETURN_IF_ERROR(Impl::CheckText(utf8));
  std::vector<int32_t> ids;
  size_t done = 0;
  if (added == AddedTokens::kParse) {
    size_t undecided = 0;
    for (;;) {
      const AddedMatch match = impl_->vocab.FindAdded(utf8, done, true, &undecided);
      if (match.length == 0) break;
      impl_->EncodeRun(utf8.substr(done, match.begin - done), &ids);
      ids.push_back(match.id);
      done = match.begin + match.length;
    }
  }
  impl_->EncodeRun(utf8.substr(done), &ids);
  return ids;
}

std::string_view Tokenizer::TokenBytes(int32_t id) const {
  return impl_->vocab.Bytes(id);
}

std::string Tokenizer::Decode(std::span<const int32_t> ids, bool skip_control) const {
  std::string out;
  for (const int32_t id : ids) {
    if (!skip_control || !IsControl(id)) out += TokenBytes(id);
  }
  return out;
}

int32_t Tokenizer::n_vocab() const {
  return impl_->vocab.size();
}
int32_t Tokenizer::FindToken(std::string_view text) const {
  return impl_->vocab.Find(text);
}
bool Tokenizer::IsControl(int32_t id) const {
  return impl_->vocab.Has(id) && impl_->vocab.Type(id) == TokenType::kControl;
}
bool Tokenizer::IsAdded(int32_t id) const {
  return impl_->vocab.IsAdded(id);
}
const std::vector<int32_t>& Tokenizer::end_ids() const {
  return impl_->end_ids;
}
bool Tokenizer::IsEnd(int32_t id) const {
  return std::find(impl_->end_ids.begin(), impl_->end_ids.end(), id) != impl_->end_ids.end();
}
const std::string& Tokenizer::chat_template() const {
  return impl_->chat_template;
}
const std::string& Tokenizer::pre() const {
  return impl_->pre;
}

}  // namespace kvart

// The vocabulary, built and checked from the metadata.
// May depend on: base, quant, gguf. Next for the token: tokenizer.cc encodes and decodes with it.
#include "tokenizer/vocab.h"

#include <algorithm>
#include <array>
#include <climits>

#include "tokenizer/unicode.h"

namespace kvart {
namespace {

constexpr const char* kTokensKey = "tokenizer.ggml.tokens";
constexpr const char* kTypesKey = "tokenizer.ggml.token_type";
constexpr const char* kMergesKey = "tokenizer.ggml.merges";

// Byte-level BPE spells each byte as a printable character: itself where Latin-1 has one, or else U+0100 and on.
constexpr uint32_t kAlphabetEnd = 0x144;
std::array<int16_t, kAlphabetEnd> MakeAlphabet() {
  std::array<int16_t, kAlphabetEnd> byte_of;
  byte_of.fill(-1);
  uint32_t next = 0x100;
  for (int b = 0; b < 256; ++b) {
    const bool printable = (b > 0x20 && b < 0x7f) || (b > 0xa0 && b != 0xad);
    byte_of[printable ? static_cast<uint32_t>(b) : next++] = static_cast<int16_t>(b);
  }
  return byte_of;
}

// Appends the bytes that text spells in that alphabet. False, and *out as it was, when it holds another character.
bool AppendSpelt(std::string_view text, std::string* out) {
  static const std::array<int16_t, kAlphabetEnd> kByteOf = MakeAlphabet();
  const size_t before = out->size();
  for (size_t i = 0; i < text.size();) {
    const Utf8Front front = ReadUtf8(text.substr(i));
    if (front.length <= 0 || front.code_point >= kAlphabetEnd || kByteOf[front.code_point] < 0) {
      out->resize(before);
      return false;
    }
    out->push_back(static_cast<char>(kByteOf[front.code_point]));
    i += static_cast<size_t>(front.length);
  }
  return true;
}

// For messages: not too long, and no byte in it that is not printable ASCII.
std::string Quoted(std::string_view text) {
  std::string out = "\"";
  for (const char c : text.substr(0, 60)) {
    if (c >= 0x20 && c < 0x7f) {
      out.push_back(c);
    } else {
      constexpr const char* kDigits = "0123456789abcdef";
      out += {'\\', 'x', kDigits[static_cast<unsigned char>(c) >> 4], kDigits[static_cast<unsigned char>(c) & 15]};
    }
  }
  return out + (text.size() > 60 ? "...\"" : "\"");
}

Status CheckId(const char* key, int64_t id, size_t n_tokens) {
  if (id == -1 || (id >= 0 && static_cast<uint64_t>(id) < n_tokens)) return {};
  return Errorf(StatusCode::kCorrupt, "%s: found id %lld, wanted 0 to %zu (the file has %zu tokens)", key,
                static_cast<long long>(id), n_tokens - 1, n_tokens);
}

}  // namespace

std::string_view Vocab::Bytes(int32_t id) const {
  if (!Has(id) || Type(id) == TokenType::kUnused) return {};
  const uint64_t begin = id == 0 ? 0 : ends_[static_cast<size_t>(id) - 1];
  return std::string_view(pool_).substr(begin, ends_[static_cast<size_t>(id)] - begin);
}

size_t Vocab::FirstSlot(std::string_view bytes) const {
  uint64_t hash = 0xcbf29ce484222325u;  // FNV-1a
  for (const char c : bytes) hash = (hash ^ static_cast<unsigned char>(c)) * 0x100000001b3u;
  return static_cast<size_t>(hash ^ hash >> 29) & (slots_.size() - 1);
}

int32_t Vocab::FindPlain(std::string_view bytes) const {
  size_t slot = FirstSlot(bytes);
  while (slots_[slot] >= 0 && Bytes(slots_[slot]) != bytes) slot = (slot + 1) & (slots_.size() - 1);
  return slots_[slot];
}

bool Vocab::InsertPlain(int32_t id) {
  const std::string_view bytes = Bytes(id);
  size_t slot = FirstSlot(bytes);
  while (slots_[slot] >= 0) {
    if (Bytes(slots_[slot]) == bytes) return false;
    slot = (slot + 1) & (slots_.size() - 1);
  }
  slots_[slot] = id;
  return true;
}

int32_t Vocab::Find(std::string_view bytes) const {
  const auto it = std::lower_bound(added_.begin(), added_.end(), std::pair(bytes, INT32_MIN));
  if (it != added_.end() && it->first == bytes) return it->second;
  return FindPlain(bytes);
}

Status Vocab::Init(const TokenizerData& data, Bpe* bpe) {
  KVART_RETURN_IF_ERROR(InitTokens(data));
  KVART_RETURN_IF_ERROR(CheckId("tokenizer.ggml.eos_token_id", data.eos_id, data.tokens.size()));
  KVART_RETURN_IF_ERROR(CheckId("tokenizer.ggml.eot_token_id", data.eot_id, data.tokens.size()));
  KVART_RETURN_IF_ERROR(CheckId("tokenizer.ggml.bos_token_id", data.bos_id, data.tokens.size()));
  KVART_RETURN_IF_ERROR(CheckId("tokenizer.ggml.padding_token_id", data.padding_id, data.tokens.size()));
  return InitMerges(data.merges, bpe);
}

Status Vocab::InitTokens(const TokenizerData& data) {
  const size_t n = data.tokens.size();
  if (n == 0) return Errorf(StatusCode::kCorrupt, "%s: found an empty list, wanted at least 256 tokens", kTokensKey);
  if (n > INT32_MAX)
    return Errorf(StatusCode::kCorrupt, "%s: found %zu tokens, wanted at most 2^31 - 1", kTokensKey, n);
  if (data.token_types.size() != n) {
    return Errorf(StatusCode::kCorrupt, "%s: found %zu entries, wanted %zu, one for each of %s", kTypesKey,
                  data.token_types.size(), n, kTokensKey);
  }
  for (size_t i = 0; i < n; ++i) {
    const int64_t type = data.token_types[i];
    if (type < 1 || type > 6) {
      return Errorf(StatusCode::kCorrupt, "%s: found %lld for token %zu, wanted 1 to 6", kTypesKey,
                    static_cast<long long>(type), i);
    }
    const std::string_view text = data.tokens[i];
    TokenType kind = static_cast<TokenType>(type);
    // Some files mark the padding up to the width of the embedding as user-defined; nobody means it when typing it.
    if (kind == TokenType::kUserDefined && text == "[PAD" + std::to_string(i) + "]") kind = TokenType::kUnused;
    const bool literal = kind == TokenType::kControl || kind == TokenType::kUserDefined || kind == TokenType::kUnused;
    if (text.empty() && kind != TokenType::kUnused) {
      return Errorf(StatusCode::kCorrupt, "%s: token %zu is empty, wanted some text", kTokensKey, i);
    }
    if (literal || !AppendSpelt(text, &pool_)) pool_.append(text);
    ends_.push_back(pool_.size());
    types_.push_back(kind);
  }
  size_t slots = 16;
  while (slots < 2 * n) slots *= 2;
  slots_.assign(slots, -1);
  for (int32_t id = 0; id < size(); ++id) {
    if (Type(id) == TokenType::kUnused) continue;
    if (IsAdded(id)) {
      added_.emplace_back(Bytes(id), id);
      begins_added_[static_cast<unsigned char>(Bytes(id)[0])] = true;
    } else if (!InsertPlain(id)) {
      return Errorf(StatusCode::kCorrupt, "%s: token %d repeats token %d, %s; wanted each once", kTokensKey, id,
                    FindPlain(Bytes(id)), Quoted(data.tokens[static_cast<size_t>(id)]).c_str());
    }
  }
  std::sort(added_.begin(), added_.end());
  for (size_t i = 1; i < added_.size(); ++i) {
    if (added_[i].first == added_[i - 1].first) {
      return Errorf(StatusCode::kCorrupt, "%s: token %d repeats token %d, %s; wanted each once", kTokensKey,
                    added_[i].second, added_[i - 1].second, Quoted(added_[i].first).c_str());
    }
  }
  return {};
}

Status Vocab::InitMerges(const std::vector<std::string_view>& merges, Bpe* bpe) const {
  if (merges.size() > INT32_MAX) {
    return Errorf(StatusCode::kCorrupt, "%s: found %zu merges, wanted at most 2^31 - 1", kMergesKey, merges.size());
  }
  std::vector<int32_t> byte_ids(256);
  for (int b = 0; b < 256; ++b) {
    const char byte = static_cast<char>(b);
    byte_ids[static_cast<size_t>(b)] = FindPlain(std::string_view(&byte, 1));
    if (byte_ids[static_cast<size_t>(b)] < 0) {
      return Errorf(StatusCode::kCorrupt, "%s: no token for the single byte 0x%02x; wanted all 256", kTokensKey, b);
    }
  }
  bpe->Reset(byte_ids, merges.size());
  std::string bytes;
  for (size_t i = 0; i < merges.size(); ++i) {
    const std::string_view merge = merges[i];
    const size_t space = merge.find(' ');
    bytes.clear();
    size_t middle = 0;
    bool spelt = space != std::string_view::npos && space > 0 && space + 1 < merge.size();
    spelt = spelt && AppendSpelt(merge.substr(0, space), &bytes) && (middle = bytes.size()) > 0 &&
            AppendSpelt(merge.substr(space + 1), &bytes);
    if (!spelt) {
      return Errorf(StatusCode::kCorrupt, "%s: merge %zu is %s, wanted two tokens with a blank between them",
                    kMergesKey, i, Quoted(merge).c_str());
    }
    const int32_t left = FindPlain(std::string_view(bytes).substr(0, middle));
    const int32_t right = FindPlain(std::string_view(bytes).substr(middle));
    const int32_t merged = FindPlain(bytes);
    if (left < 0 || right < 0 || merged < 0) {
      return Errorf(StatusCode::kCorrupt, "%s: merge %zu, %s: %s is not in %s", kMergesKey, i, Quoted(merge).c_str(),
                    left < 0    ? "its left part"
                    : right < 0 ? "its right part"
                                : "the merged token",
                    kTokensKey);
    }
    if (!bpe->Add(left, right, merged)) {
      return Errorf(StatusCode::kCorrupt, "%s: merge %zu, %s, stands there twice; wanted each once", kMergesKey, i,
                    Quoted(merge).c_str());
    }
  }
  return {};
}

AddedMatch Vocab::MatchAdded(std::string_view text, bool* open) const {
  AddedMatch best{0, 0, -1};
  auto low = added_.begin();
  auto high = added_.end();
  size_t depth = 0;
  // [low, high) are the added tokens that begin with the first depth bytes of text.
  for (; depth < text.size() && low != high; ++depth) {
    const auto byte_at = [depth](const auto& entry) {
      return entry.first.size() > depth ? static_cast<int>(static_cast<unsigned char>(entry.first[depth])) : -1;
    };
    const int byte = static_cast<unsigned char>(text[depth]);
    low = std::partition_point(low, high, [&](const auto& entry) { return byte_at(entry) < byte; });
    high = std::partition_point(low, high, [&](const auto& entry) { return byte_at(entry) <= byte; });
    if (low != high && low->first.size() == depth + 1) best = {0, depth + 1, low->second};
  }
  *open = depth == text.size() && low != high && std::prev(high)->first.size() > depth;
  return best;
}

AddedMatch Vocab::FindAdded(std::string_view text, size_t from, bool at_end, size_t* undecided) const {
  *undecided = std::string_view::npos;
  for (size_t i = from; i < text.size(); ++i) {
    if (!begins_added_[static_cast<unsigned char>(text[i])]) continue;
    bool open = false;
    AddedMatch match = MatchAdded(text.substr(i), &open);
    if (open && !at_end) {
      *undecided = i;
      break;
    }
    if (match.length > 0) {
      match.begin = i;
      return match;
    }
  }
  return {0, 0, -1};
}

}  // namespace kvart

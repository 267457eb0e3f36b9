// Encoding, decoding, streams, segments, and metadata that does not hold together.
#include "tokenizer/tokenizer.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <map>
#include <random>

#include "tokenizer/segments.h"
#include "toy_vocab.h"

namespace kvart {
namespace {

using Ids = std::vector<int32_t>;

std::unique_ptr<const Tokenizer> Make() {
  const ToyVocab vocab;
  TokenizerData data = vocab.Data();
  data.eos_id = 270;  // <|im_end|>
  auto result = Tokenizer::FromData(data);
  EXPECT_TRUE(result.ok()) << result.status().message();
  return std::move(result).value();
}

Ids Encode(const Tokenizer& tokenizer, std::string_view text, AddedTokens added = AddedTokens::kParse) {
  auto ids = tokenizer.Encode(text, added);
  EXPECT_TRUE(ids.ok()) << ids.status().message();
  return ids.ok() ? *ids : Ids{};
}

// Byte-pair merging as it is defined: over and over the leftmost pair of the lowest rank.
std::vector<std::string> NaiveMerge(const ToyVocab& vocab, std::string_view bytes) {
  std::map<std::string, size_t> ranks;
  for (size_t i = 0; i < vocab.merges.size(); ++i) ranks[vocab.merges[i]] = i;
  std::vector<std::string> parts;
  for (const char c : bytes) parts.push_back(Spell(std::string(1, c)));
  for (;;) {
    size_t best = SIZE_MAX, at = 0;
    for (size_t i = 0; i + 1 < parts.size(); ++i) {
      const auto it = ranks.find(parts[i] + " " + parts[i + 1]);
      if (it != ranks.end() && it->second < best) best = it->second, at = i;
    }
    if (best == SIZE_MAX) return parts;
    parts[at] += parts[at + 1];
    parts.erase(parts.begin() + static_cast<std::ptrdiff_t>(at) + 1);
  }
}

TEST(Tokenizer, MergesAsDefined) {
  const ToyVocab vocab;
  const auto tokenizer = Make();
  std::mt19937 random(1);
  for (int round = 0; round < 2000; ++round) {
    std::string word;
    for (size_t n = 1 + random() % 120; n > 0; --n) word += "aaabhelo"[random() % 8];
    Ids expected;
    for (const std::string& part : NaiveMerge(vocab, word)) {
      expected.push_back(
          static_cast<int32_t>(std::find(vocab.tokens.begin(), vocab.tokens.end(), part) - vocab.tokens.begin()));
    }
    ASSERT_EQ(Encode(*tokenizer, word), expected) << word;
  }
}

TEST(Tokenizer, AddedTokens) {
  const auto tokenizer = Make();
  EXPECT_EQ(Encode(*tokenizer, "<|im_end|>"), Ids{270});
  EXPECT_EQ(Encode(*tokenizer, "<think>>"), Ids{272}) << "the longest one";
  EXPECT_EQ(Encode(*tokenizer, "<think>a"), (Ids{271, 'a'}));
  EXPECT_EQ(Encode(*tokenizer, "<|im_end"), Encode(*tokenizer, "<|im_end", AddedTokens::kPlain));
  EXPECT_EQ(Encode(*tokenizer, "<|im_end|>", AddedTokens::kPlain).size(), 10u);
  EXPECT_EQ(Encode(*tokenizer, "e<|im_end|>\u0301"), (Ids{'e', 270, 0xcc, 0x81})) << "nothing combines across a token";
  EXPECT_EQ(tokenizer->FindToken("<think>"), 271);
  EXPECT_EQ(tokenizer->FindToken(" hello"), 263);
  EXPECT_EQ(tokenizer->FindToken("[PAD273]"), -1);
  EXPECT_EQ(tokenizer->FindToken(""), -1);
  EXPECT_TRUE(tokenizer->IsControl(270) && !tokenizer->IsControl(271) && tokenizer->IsAdded(271));
  EXPECT_FALSE(tokenizer->IsControl(-1) || tokenizer->IsAdded(274) || tokenizer->IsAdded(273));
  EXPECT_EQ(tokenizer->end_ids(), (std::vector<int32_t>{270, 268}));
  EXPECT_TRUE(tokenizer->IsEnd(268) && !tokenizer->IsEnd(269));
}

TEST(Tokenizer, Decode) {
  const auto tokenizer = Make();
  EXPECT_EQ(tokenizer->TokenBytes(264), "\u00e9");
  EXPECT_EQ(tokenizer->TokenBytes(-1), "");
  EXPECT_EQ(tokenizer->TokenBytes(INT32_MAX), "");
  EXPECT_EQ(tokenizer->Decode(Ids{263, 270, 273, 271}, false), " hello<|im_end|><think>");
  EXPECT_EQ(tokenizer->Decode(Ids{263, 270, 271}, true), " hello<think>");
  StreamDecoder decoder(*tokenizer);
  EXPECT_EQ(decoder.Push(0xe4), "");
  EXPECT_EQ(decoder.Push(0xbd), "");
  EXPECT_EQ(decoder.Push(270), "");
  EXPECT_EQ(decoder.Push(0xa0), "\u4f60");
  EXPECT_EQ(decoder.Push(0xe4), "");
  EXPECT_EQ(decoder.Push('x'), "\ufffdx");
  decoder.Push(0xf0);
  EXPECT_EQ(decoder.Finish(), "\ufffd");
  EXPECT_EQ(decoder.Finish(), "");
}

TEST(Tokenizer, InvalidUtf8) {
  const auto tokenizer = Make();
  const auto result = tokenizer->Encode("abc\xff", AddedTokens::kParse);
  ASSERT_FALSE(result.ok());
  EXPECT_EQ(result.status().code(), StatusCode::kInvalidArgument);
  EXPECT_NE(result.status().message().find("byte 3 (0xff)"), std::string::npos) << result.status().message();
  StreamEncoder encoder(*tokenizer, AddedTokens::kParse);
  Ids ids;
  EXPECT_TRUE(encoder.Push("abc \xe4", &ids).ok());
  const Status status = encoder.Push("x", &ids);
  EXPECT_EQ(status.offset(), 4);
  EXPECT_FALSE(encoder.Push("fine", &ids).ok()) << "the error stays";
  EXPECT_FALSE(encoder.Finish(&ids).ok());
  ids.clear();
  EXPECT_TRUE(encoder.Push("hello", &ids).ok() && encoder.Finish(&ids).ok());
  EXPECT_EQ(ids, Ids{262});
  EXPECT_TRUE(encoder.Push("\xe4\xbd", &ids).ok());
  EXPECT_EQ(encoder.Finish(&ids).offset(), 0);
}

TEST(Tokenizer, StreamsEqualTheWhole) {
  const auto tokenizer = Make();
  const std::vector<std::string> parts = {"hello", " hello",  "  ",     "\n",           "<|im_end|>", "<think>>",
                                          "<thi",  "e\u0301", "\u0323", "\u1100\u1161", "\u11a8",     "'ll",
                                          "'",     "1",       "!",      "\U0001f469",   "<|im_",      "aaaa"};
  std::mt19937 random(2);
  for (int round = 0; round < 3000; ++round) {
    std::string text;
    for (size_t n = random() % 12; n > 0; --n) text += parts[random() % parts.size()];
    for (const AddedTokens added : {AddedTokens::kParse, AddedTokens::kPlain}) {
      StreamEncoder encoder(*tokenizer, added);
      Ids ids;
      for (std::string_view rest = text; !rest.empty();) {
        const size_t n = std::min<size_t>(rest.size(), 1 + random() % 5);
        ASSERT_TRUE(encoder.Push(rest.substr(0, n), &ids).ok());
        rest.remove_prefix(n);
      }
      ASSERT_TRUE(encoder.Finish(&ids).ok());
      ASSERT_EQ(ids, Encode(*tokenizer, text, added)) << text;
    }
  }
}

TEST(Tokenizer, AMillionEqual) {
  const auto tokenizer = Make();
  for (const std::string unit : {"a", " ", "\n", "<", "\u0301"}) {
    std::string text;
    for (int i = 0; i < 1000000; ++i) text += unit;
    const auto start = std::chrono::steady_clock::now();
    const Ids ids = Encode(*tokenizer, text);
    // Ample, for sanitizers and emulators: what is quadratic takes hours.
    EXPECT_LT(std::chrono::steady_clock::now() - start, std::chrono::seconds(60));
    EXPECT_EQ(tokenizer->Decode(ids, false), text);
  }
}

TEST(Tokenizer, Segments) {
  const auto tokenizer = Make();
  const auto encode = [&](std::vector<ChatSegment> segments) { return *EncodeSegments(*tokenizer, segments); };
  EXPECT_EQ(encode({{"<|im_start|>he", true}, {"ll", false}, {"o<|im_end|>", true}}), (Ids{269, 262, 270}));
  EXPECT_EQ(encode({{"e", true}, {"\u0301", false}}), Ids{264});
  EXPECT_EQ(encode({{"<|im_end|>", false}}).size(), 10u);
  EXPECT_EQ(encode({{"<|im_", false}, {"end|>", true}}).size(), 10u);
  EXPECT_EQ(encode({{"<|im_", true}, {"", false}, {"end|>", true}}), Ids{270});
  EXPECT_EQ(encode({}), Ids{});
  const std::vector<ChatSegment> invalid = {{"a", true}, {"\xff", false}};
  EXPECT_EQ(EncodeSegments(*tokenizer, invalid).status().offset(), 1);
}

void ExpectCorrupt(const TokenizerData& data, const std::string& wanted) {
  const auto result = Tokenizer::FromData(data);
  ASSERT_FALSE(result.ok()) << wanted;
  EXPECT_EQ(result.status().code(), StatusCode::kCorrupt);
  EXPECT_NE(result.status().message().find(wanted), std::string::npos) << result.status().message();
}

TEST(Tokenizer, RefusesWhatDoesNotFit) {
  const ToyVocab vocab;
  TokenizerData data;
  ExpectCorrupt(data, "tokenizer.ggml.tokens: found an empty list");
  data = vocab.Data(), data.token_types.pop_back();
  ExpectCorrupt(data, "tokenizer.ggml.token_type: found 273 entries, wanted 274");
  data = vocab.Data(), data.token_types[5] = 7;
  ExpectCorrupt(data, "tokenizer.ggml.token_type: found 7 for token 5");
  data = vocab.Data(), data.tokens[5] = data.tokens[4];
  ExpectCorrupt(data, "token 5 repeats token 4");
  data = vocab.Data(), data.tokens[270] = data.tokens[269];
  ExpectCorrupt(data, "token 270 repeats token 269, \"<|im_start|>\"");
  data = vocab.Data(), data.tokens[5] = "long";
  ExpectCorrupt(data, "no token for the single byte 0x05");
  data = vocab.Data(), data.tokens[5] = "";
  ExpectCorrupt(data, "token 5 is empty");
  data = vocab.Data(), data.merges[1] = "aa";
  ExpectCorrupt(data, "tokenizer.ggml.merges: merge 1 is \"aa\"");
  data = vocab.Data(), data.merges[1] = "a zz";
  ExpectCorrupt(data, "its right part is not in tokenizer.ggml.tokens");
  data = vocab.Data(), data.merges[1] = "z z";
  ExpectCorrupt(data, "the merged token is not in");
  data = vocab.Data(), data.merges[1] = data.merges[2];
  ExpectCorrupt(data, "stands there twice");
  data = vocab.Data(), data.eos_id = 274;
  ExpectCorrupt(data, "tokenizer.ggml.eos_token_id: found id 274, wanted 0 to 273");
  data = vocab.Data(), data.padding_id = -2;
  ExpectCorrupt(data, "tokenizer.ggml.padding_token_id: found id -2");
}

}  // namespace
}  // namespace kvart

// FORMAT.md's worked example: read from the document itself, decoded, and compared with what the store writes.
#include <gtest/gtest.h>

#include <cstring>
#include <fstream>
#include <map>
#include <sstream>

#include "base/fake_fs.h"
#include "kvcache/index.h"
#include "kvcache/journal.h"
#include "kvcache/page_file.h"
#include "kvcache/sequence.h"
#include "quant/half.h"
#include "quant/kv_block.h"

namespace kvart {
namespace {

constexpr int kTokens = 8, kDim = 8, kSinks = 2;

// The document's text: keys and values of token t, channel c. All are halves.
float Key(int t, int c) {
  return static_cast<float>(c) - 3.5f + 0.25f * static_cast<float>((t * 3 + c) % 8);
}
float Value(int t, int c) {
  return 0.5f * static_cast<float>(t) - 0.125f * static_cast<float>(c * c % 7);
}

std::vector<uint16_t> Rows(float (*f)(int, int), int tokens) {
  std::vector<uint16_t> rows;
  for (int t = 0; t < tokens; ++t) {
    for (int c = 0; c < kDim; ++c) rows.push_back(FloatToHalf(f(t, c)));
  }
  return rows;
}

struct Example {
  KvGeometry geometry;
  StoreOptions options;
  SlotHead page;
  std::vector<uint8_t> page_payload, open_page;
  KvFormats formats = ParseKvFormats("int4", "int4").value();
  KvBlock keys{formats.k, true, kTokens, kDim}, values{formats.v, false, kTokens, kDim};
};

Example MakeExample(FileSystem* files) {
  Example e;
  e.geometry.n_layers = e.geometry.n_kv_heads = 1;
  e.geometry.head_dim = kDim;
  e.geometry.page_tokens = kTokens;
  e.geometry.formats = e.formats;
  e.geometry.sinks = kSinks;
  e.page_payload.resize(e.keys.bytes() + e.values.bytes());
  e.keys.Encode(Rows(Key, kTokens).data(), kSinks, e.page_payload.data());
  e.values.Encode(Rows(Value, kTokens).data(), kSinks, e.page_payload.data() + e.keys.bytes());
  // A tile: keys channel by channel, values token by token.
  const std::vector<uint16_t> key_rows = Rows(Key, kTokens), value_rows = Rows(Value, kTokens);
  for (int i = 0; i < 2 * kTokens * kDim; ++i) {
    const int j = i % (kTokens * kDim);
    const uint16_t half = i < kTokens * kDim ? key_rows[static_cast<size_t>(j % kTokens * kDim + j / kTokens)]
                                             : value_rows[static_cast<size_t>(j)];
    e.open_page.insert(e.open_page.end(), {uint8_t(half), uint8_t(half >> 8)});
  }
  e.options.payload_bytes = e.page_payload.size();
  e.options.k_format = e.options.v_format = "int4";
  e.options.sinks = kSinks;
  for (size_t i = 0; i < 32; ++i) e.options.fingerprint[i] = static_cast<uint8_t>(i);
  e.options.files = files;
  e.options.sync_ms = 0;
  e.page.kind = SlotKind::kPage;
  e.page.ids = {100, 101, 102, 103, 104, 105, 106, 107};
  e.page.name = NameOfPage(e.page.previous, e.page.ids);
  return e;
}

// The blocks of hex in the document, by the word behind the fence.
std::map<std::string, std::vector<uint8_t>> Document() {
  std::ifstream file(std::string(KVART_GOLDEN_DIR) + "/../../cpp/kvcache/FORMAT.md");
  std::map<std::string, std::vector<uint8_t>> blocks;
  std::string line, name;
  while (std::getline(file, line)) {
    if (line.starts_with("```")) {
      name = line.size() > 7 && line.starts_with("```hex ") ? line.substr(7) : "";
      continue;
    }
    std::istringstream words(name.empty() ? "" : line);
    for (std::string word; words >> word;) {
      for (size_t i = 0; i + 1 < word.size(); i += 2) {
        blocks[name].push_back(static_cast<uint8_t>(std::stoi(word.substr(i, 2), nullptr, 16)));
      }
    }
  }
  return blocks;
}

std::string Dump(std::span<const uint8_t> bytes) {
  std::string text;
  for (size_t i = 0; i < bytes.size(); ++i) {
    text += Hex(bytes.subspan(i, 1));
    if (i % 4 == 3) text += i % 32 == 31 ? "\n" : " ";
  }
  return text + "\n";
}

TEST(Format, TheDocumentsBytesAreWhatTheCodeWrites) {
  FakeFiles files;
  const Example e = MakeExample(&files);
  {
    const auto sequence = NewPagedSequence(PagePool::New(e.geometry, HostMemory()).value(),
                                           PageStore::Open("/kv", e.geometry, e.options).value(), 0)
                              .value();
    ASSERT_TRUE(sequence->Reserve(kTokens).ok());
    const KvView::Run run = sequence->View(0, kTokens).runs.at(0);
    std::memcpy(HostPointer<uint8_t>(run.k), e.open_page.data(), e.open_page.size());
    sequence->Commit(e.page.ids);
    ASSERT_TRUE(sequence->Seal(e.page_payload).ok());
  }
  JournalOptions session;
  session.store = {e.options.fingerprint, "int4", "int4"};
  session.files = &files;
  session.sync_ms = 0;
  {
    Replay replay;
    const auto journal = Journal::Open("/kv/sessions", "example", session, &replay).value();
    ASSERT_TRUE(journal->Append(e.page.ids).ok() && journal->Rewind(6).ok());
  }
  const auto pages = files.Contents("/kv/0001020304050607.pages"), index = files.Contents("/kv/0001020304050607.index");
  auto journal = files.Contents("/kv/sessions/example.session");
  std::fill(journal.begin() + 116, journal.begin() + 124, uint8_t{0});  // this process
  const std::span<const uint8_t> all(pages);
  const uint64_t home = SlotIndex::KeyOf(e.page.name) & 255;
  std::map<std::string, std::span<const uint8_t>> written = {
      {"header", all.subspan(0, 156)},
      {"sinks-head-0", all.subspan(16384, 128)},
      {"sinks-payload-0", all.subspan(16384 + 1024, 128)},
      {"sinks-head-1", all.subspan(16384 * 2, 128)},
      {"sinks-payload-1", all.subspan(16384 * 2 + 1024, 128)},
      {"page-head", all.subspan(16384 * 3, 128)},
      {"page-payload", all.subspan(16384 * 3 + 1024, e.page_payload.size())},
      {"index-header", std::span<const uint8_t>(index).subspan(0, 16)},
      {"index-entry", std::span<const uint8_t>(index).subspan(16 + 16 * home, 16)},
      {"session", std::span<const uint8_t>(journal)},
  };
  // The page is too small for fine rows. With room for one it would be of channel 1, the first of the widest:
  const KvFine fine(1, 1, kTokens);
  std::vector<float> importance(kDim, 1.0f);
  importance[1] = 2;
  std::vector<uint8_t> section(fine.bytes());
  fine.Choose(importance, kDim, section.data());
  fine.Encode(e.keys, e.page_payload.data(), Rows(Key, kTokens).data(), kSinks, 0, section.data());
  written["fine"] = section;
  const auto document = Document();
  for (const auto& [name, bytes] : written) {
    const auto found = document.find(name);
    EXPECT_TRUE(found != document.end() &&
                std::equal(bytes.begin(), bytes.end(), found->second.begin(), found->second.end()))
        << "FORMAT.md should have\n```hex " << name << "\n"
        << Dump(bytes) << "```";
  }
  EXPECT_EQ(document.size(), written.size());
}

TEST(Format, TheDocumentsPageDecodes) {
  auto document = Document();
  const Example e = MakeExample(nullptr);
  const std::vector<uint8_t>& payload = document["page-payload"];
  ASSERT_EQ(payload.size(), e.keys.bytes() + e.values.bytes());
  std::vector<float> k(kTokens * kDim), v(k.size());
  e.keys.Decode(payload.data(), k.data());
  e.values.Decode(payload.data() + e.keys.bytes(), v.data());
  for (int t = kSinks; t < kTokens; ++t) {
    for (int c = 0; c < kDim; ++c) {
      EXPECT_NEAR(k[static_cast<size_t>(t * kDim + c)], Key(t, c), 1.75f / 15);  // half a step of the widest range
      EXPECT_NEAR(v[static_cast<size_t>(t * kDim + c)], Value(t, c), 0.75f / 15);
    }
  }
  PageFileHeader header = MakePageFileHeader(e.geometry, e.options).value();
  bool free = true;
  for (const char* name : {"page-head", "sinks-head-0", "sinks-head-1"}) ASSERT_EQ(document[name].size(), 128u) << name;
  const auto head = DecodeHead(header, document["page-head"], &free);
  ASSERT_TRUE(head.has_value());
  EXPECT_EQ(head->head, e.page);
  EXPECT_EQ(head->payload_bytes, payload.size());
  std::vector<uint8_t> sinks;
  for (const char* piece : {"0", "1"}) {
    const auto found = DecodeHead(header, document[std::string("sinks-head-") + piece], &free);
    ASSERT_TRUE(found.has_value());
    EXPECT_EQ(found->head.kind, SlotKind::kSinks);
    EXPECT_EQ(found->head.page, static_cast<uint32_t>(piece[0] - '0'));
    EXPECT_EQ(found->head.previous, e.page.name);
    const std::vector<uint8_t>& part = document[std::string("sinks-payload-") + piece];
    sinks.insert(sinks.end(), part.begin(), part.end());
  }
  EXPECT_EQ(sinks, e.open_page);  // here the tile of the sinks is the whole page
}

}  // namespace
}  // namespace kvart

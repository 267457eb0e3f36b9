// The GGUF reader: good files of both versions, split files, and everything a hostile file can try.
#include "gguf/gguf.h"

#include <gtest/gtest.h>

#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <limits>

#include "gguf/gguf_writer.h"
#include "quant/quant.h"

namespace kvart {
namespace {

using testing::GgufWriter;

Result<std::shared_ptr<const GgufFile>> Parse(const std::vector<uint8_t>& bytes) {
  return GgufFile::Parse(bytes, "x.gguf");
}

// One value of every type, and two tensors.
GgufWriter Small() {
  GgufWriter w;
  w.Uint8("u8", 200);
  w.Int8("i8", -100);
  w.Uint16("u16", 60000);
  w.Int16("i16", -30000);
  w.Uint32("u32", 4000000000u);
  w.Int32("i32", -5);
  w.Float32("f32", 0.5f);
  w.Bool("yes", true);
  w.Uint64("u64", std::numeric_limits<uint64_t>::max());
  w.Int64("i64", std::numeric_limits<int64_t>::min());
  w.Float64("f64", 1e300);
  w.String("text", std::string_view("a\0b", 3));
  w.Strings("texts", {"", "one", "two"});
  w.Array<int32_t>("ints", 5, {-1, 2});
  w.Array<uint64_t>("uints", 10, {1, std::numeric_limits<uint64_t>::max()});
  w.Array<float>("floats", 6, {0.25f, -2.0f});
  w.Array<uint8_t>("bools", 7, {1, 0, 1});
  w.Array<uint8_t>("none", 0, {});
  w.Tensor("a", {3, 2}, {1, 2, 3, 4, 5, 6});
  w.Tensor("b", DType::kQ8_0, {64}, std::vector<uint8_t>(68, 7));
  return w;
}

// The file is refused with this code, says all of `words`, and names itself and a byte.
void ExpectRefused(const std::vector<uint8_t>& bytes, StatusCode code, const std::vector<std::string>& words) {
  const auto file = Parse(bytes);
  ASSERT_FALSE(file.ok()) << "wanted: " << (words.empty() ? "" : words[0]);
  EXPECT_EQ(StatusCodeName(file.status().code()), StatusCodeName(code)) << file.status().message();
  for (const std::string& word : words) {
    EXPECT_NE(file.status().message().find(word), std::string::npos)
        << word << " is not in: " << file.status().message();
  }
  EXPECT_EQ(file.status().file(), "x.gguf");
  EXPECT_GE(file.status().offset(), 0);
  const std::string where = "byte " + std::to_string(file.status().offset()) + ":";
  EXPECT_NE(file.status().message().find(where), std::string::npos) << file.status().message();
}

TEST(Gguf, ReadsEveryType) {
  for (uint32_t version : {2u, 3u}) {
    GgufWriter w = Small();
    w.version = version;
    const std::vector<uint8_t> bytes = w.Build();
    auto result = Parse(bytes);
    ASSERT_TRUE(result.ok()) << result.status().message();
    const GgufFile& f = **result;
    EXPECT_EQ(f.version(), version);
    EXPECT_EQ(f.file_bytes(), bytes.size());
    EXPECT_EQ(f.path(), "x.gguf");
    EXPECT_EQ(f.metadata().size(), 18u);
    EXPECT_EQ(f.metadata()[3].first, "i16");
    EXPECT_EQ(*f.GetUint("u8"), 200u);
    EXPECT_EQ(*f.GetUint("u16"), 60000u);
    EXPECT_EQ(*f.GetUint("u32"), 4000000000u);
    EXPECT_EQ(*f.GetUint("u64"), std::numeric_limits<uint64_t>::max());
    EXPECT_EQ(std::get<int64_t>(*f.Find("i8")), -100);
    EXPECT_EQ(std::get<int64_t>(*f.Find("i64")), std::numeric_limits<int64_t>::min());
    EXPECT_EQ(*f.GetDouble("f32"), 0.5);
    EXPECT_EQ(*f.GetDouble("f64"), 1e300);
    EXPECT_EQ(*f.GetDouble("i32"), -5.0);
    EXPECT_TRUE(*f.GetBool("yes"));
    EXPECT_EQ(*f.GetString("text"), std::string("a\0b", 3));
    EXPECT_EQ(*f.GetStrings("texts"), (std::vector<std::string_view>{"", "one", "two"}));
    EXPECT_EQ(*f.GetInts("ints"), (std::vector<int64_t>{-1, 2}));
    EXPECT_EQ(*f.GetDoubles("floats"), (std::vector<double>{0.25, -2.0}));
    EXPECT_EQ(*f.GetDoubles("ints"), (std::vector<double>{-1, 2}));
    EXPECT_EQ(std::get<std::vector<bool>>(std::get<GgufArray>(*f.Find("bools"))),
              (std::vector<bool>{true, false, true}));
    EXPECT_TRUE(f.GetInts("none")->empty());

    ASSERT_EQ(f.tensors().size(), 2u);
    const GgufTensor* a = f.FindTensor("a");
    ASSERT_NE(a, nullptr);
    EXPECT_EQ(a->n_dims, 2);
    EXPECT_EQ(a->dims[0], 3u);
    EXPECT_EQ(a->dims[1], 2u);
    EXPECT_EQ(a->dims[2], 1u);
    EXPECT_EQ(a->bytes, 24u);
    float row[3];
    DecodeRow(a->type, a->data + RowBytes(a->type, 3), 3, row);
    EXPECT_EQ(row[2], 6.0f);
    EXPECT_EQ(f.FindTensor("b")->bytes, 68u);
    EXPECT_EQ(f.FindTensor("b")->data[67], 7);
    EXPECT_EQ(f.FindTensor("c"), nullptr);
    EXPECT_EQ(f.MappingOf(*a), nullptr);
  }
}

TEST(Gguf, TypedAccessSaysWhatIsWrong) {
  const std::vector<uint8_t> bytes = Small().Build();
  const auto file = Parse(bytes);
  ASSERT_TRUE(file.ok());
  const GgufFile& f = **file;
  EXPECT_EQ(f.GetUint("absent").status().code(), StatusCode::kNotFound);
  EXPECT_NE(f.GetUint("absent").status().message().find("\"absent\""), std::string::npos);
  const Status wrong = f.GetUint("texts").status();
  EXPECT_EQ(wrong.code(), StatusCode::kInvalidArgument);
  EXPECT_NE(wrong.message().find("an array of strings; wanted: an integer"), std::string::npos) << wrong.message();
  EXPECT_EQ(f.GetUint("i32").status().code(), StatusCode::kInvalidArgument);    // negative
  EXPECT_EQ(f.GetInts("uints").status().code(), StatusCode::kInvalidArgument);  // 2^64 - 1
  EXPECT_EQ(f.GetInts("u8").status().code(), StatusCode::kInvalidArgument);
  EXPECT_EQ(f.GetUint("f32").status().code(), StatusCode::kInvalidArgument);
  EXPECT_EQ(f.GetDouble("text").status().code(), StatusCode::kInvalidArgument);
  EXPECT_EQ(f.GetDoubles("texts").status().code(), StatusCode::kInvalidArgument);
  EXPECT_EQ(f.GetBool("u8").status().code(), StatusCode::kInvalidArgument);
  EXPECT_EQ(f.GetString("texts").status().code(), StatusCode::kInvalidArgument);
  EXPECT_EQ(f.GetStrings("text").status().code(), StatusCode::kInvalidArgument);
}

TEST(Gguf, HonoursAlignment) {
  for (uint32_t alignment : {8u, 64u, 4096u}) {
    GgufWriter w;
    w.Alignment(alignment);
    w.Tensor("a", {1}, {1.0f});
    w.Tensor("b", {1}, {2.0f});
    const std::vector<uint8_t> bytes = w.Build();
    const auto file = Parse(bytes);
    ASSERT_TRUE(file.ok()) << file.status().message();
    EXPECT_EQ(static_cast<uint64_t>((*file)->FindTensor("b")->data - bytes.data()) % alignment, 0u);
    float value = 0;
    DecodeRow(DType::kF32, (*file)->FindTensor("b")->data, 1, &value);
    EXPECT_EQ(value, 2.0f);
  }
  for (uint32_t alignment : {0u, 1u, 4u, 24u, 33u, 0xffffffffu}) {
    GgufWriter w;
    w.Uint32("general.alignment", alignment);
    ExpectRefused(w.Build(), StatusCode::kCorrupt,
                  {"general.alignment is " + std::to_string(alignment), "power of two"});
  }
  GgufWriter w;
  w.String("general.alignment", "32");
  ExpectRefused(w.Build(), StatusCode::kCorrupt, {"general.alignment is not an unsigned integer"});
}

TEST(Gguf, FileWithoutTensorsOrAnythingIsFine) {
  EXPECT_TRUE(Parse(GgufWriter().Build()).ok());
  GgufWriter w;
  w.String("only", "metadata");
  EXPECT_TRUE(Parse(w.Build()).ok());
}

TEST(Gguf, EveryTruncationIsRefused) {
  const std::vector<uint8_t> whole = Small().Build();
  for (size_t n = 0; n < whole.size(); ++n) {
    // An allocation of exactly n bytes, so that AddressSanitizer sees a read past the end.
    const std::vector<uint8_t> cut(whole.begin(), whole.begin() + static_cast<int64_t>(n));
    const auto file = Parse(cut);
    ASSERT_FALSE(file.ok()) << n;
    EXPECT_EQ(file.status().code(), StatusCode::kCorrupt) << n << ": " << file.status().message();
    EXPECT_LE(file.status().offset(), static_cast<int64_t>(n));
  }
}

// Touches all that a file offers; under AddressSanitizer a bad view is found here.
void Touch(const GgufFile& file) {
  for (const auto& [key, value] : file.metadata()) {
    ASSERT_EQ(file.Find(key), &value);
    if (const auto texts = file.GetStrings(key); texts.ok()) {
      for (const std::string_view text : *texts) ASSERT_EQ(std::string(text).size(), text.size());
    }
    const auto text = file.GetString(key);  // copies
    ASSERT_TRUE(!text.ok() || text->size() <= file.file_bytes());
  }
  for (const GgufTensor& tensor : file.tensors()) {
    ASSERT_EQ(file.FindTensor(tensor.name), &tensor);
    const std::vector<uint8_t> copy(tensor.data, tensor.data + tensor.bytes);
    ASSERT_EQ(copy.size(), RowBytes(tensor.type, tensor.dims[0]) * tensor.dims[1] * tensor.dims[2] * tensor.dims[3]);
  }
}

TEST(Gguf, EveryFlippedBitOrByteIsReadOrRefused) {
  const std::vector<uint8_t> whole = Small().Build();
  for (size_t i = 0; i < whole.size(); ++i) {
    for (int flip : {1, 2, 4, 8, 16, 32, 64, 128, 255}) {
      std::vector<uint8_t> bytes = whole;
      bytes[i] = static_cast<uint8_t>(bytes[i] ^ flip);
      const auto file = Parse(bytes);
      if (file.ok()) {
        Touch(**file);
      } else {
        EXPECT_FALSE(file.status().message().empty());
        EXPECT_NE(file.status().code(), StatusCode::kInternal);
      }
    }
  }
}

TEST(Gguf, RefusesForeignFilesAndVersions) {
  ExpectRefused({'P', 'K', 3, 4, 0, 0, 0, 0}, StatusCode::kCorrupt, {"not a GGUF file", "PK\\x03\\x04"});
  for (uint32_t version : {0u, 1u, 4u, 0xffffffffu}) {
    GgufWriter w = Small();
    w.version = version;
    ExpectRefused(w.Build(), StatusCode::kUnsupported, {"GGUF version " + std::to_string(version), "2 and 3"});
  }
  GgufWriter w = Small();
  w.version = 0x03000000u;
  ExpectRefused(w.Build(), StatusCode::kUnsupported, {"big-endian"});
}

TEST(Gguf, RefusesHostileCounts) {
  for (int64_t count : {int64_t{1000}, int64_t{1} << 32, std::numeric_limits<int64_t>::max()}) {
    GgufWriter w = Small();
    w.n_tensors = count;
    ExpectRefused(w.Build(), StatusCode::kCorrupt, {std::to_string(count) + " tensors"});
    w = Small();
    w.n_metadata = count;
    ExpectRefused(w.Build(), StatusCode::kCorrupt, {std::to_string(count) + " metadata entries"});
  }
  for (uint64_t length : {uint64_t{1} << 40, std::numeric_limits<uint64_t>::max(), uint64_t{1} << 63}) {
    GgufWriter w;
    w.Key("k", 8).Put(length);
    ExpectRefused(w.Build(), StatusCode::kCorrupt, {"\"k\" claims " + std::to_string(length) + " bytes"});
    for (uint32_t type : {0u, 5u, 6u, 7u, 8u, 12u}) {
      GgufWriter array;
      array.Key("k", 9).Put(type).Put(length).Put(uint64_t{0});
      ExpectRefused(array.Build(), StatusCode::kCorrupt, {"\"k\" claims " + std::to_string(length) + " elements"});
    }
  }
  GgufWriter huge;
  huge.Array<uint8_t>("k", 0, std::vector<uint8_t>(GgufFile::kMaxArrayElements));
  EXPECT_TRUE(Parse(huge.Build()).ok());
  huge.Array<uint8_t>("l", 0, {1});
  ExpectRefused(huge.Build(), StatusCode::kUnsupported,
                {"\"l\" has 1 elements", std::to_string(GgufFile::kMaxArrayElements)});
}

TEST(Gguf, RefusesBadValues) {
  GgufWriter w;
  w.Key("k", 13).Put(uint64_t{0});
  ExpectRefused(w.Build(), StatusCode::kCorrupt, {"\"k\" has the value type 13"});
  w = GgufWriter();
  w.Key("k", 9).Put(uint32_t{77}).Put(uint64_t{0});
  ExpectRefused(w.Build(), StatusCode::kCorrupt, {"array of type 77"});
  w = GgufWriter();
  w.Key("k", 9).Put(uint32_t{9}).Put(uint64_t{1}).Put(uint32_t{0}).Put(uint64_t{0});
  ExpectRefused(w.Build(), StatusCode::kUnsupported, {"\"k\" is an array of arrays"});
  w = GgufWriter();
  w.Key("k", 7).Put(uint8_t{2});
  ExpectRefused(w.Build(), StatusCode::kCorrupt, {"\"k\" is a bool of 2"});
  w = GgufWriter();
  w.Array<uint8_t>("k", 7, {1, 3});
  ExpectRefused(w.Build(), StatusCode::kCorrupt, {"\"k\" is a bool of 3"});
  w = GgufWriter();
  w.Uint8("twice", 1);
  w.Uint8("twice", 2);
  ExpectRefused(w.Build(), StatusCode::kCorrupt, {"\"twice\" appears twice"});
  w = GgufWriter();
  w.Uint8("", 1);
  ExpectRefused(w.Build(), StatusCode::kCorrupt, {"empty metadata key"});
  w = GgufWriter();
  w.Uint8("a\nb\x01", 1);
  w.Uint8("a\nb\x01", 1);
  ExpectRefused(w.Build(), StatusCode::kCorrupt, {"\"a\\x0ab\\x01\""});  // nothing raw from a file in a message
}

TEST(Gguf, RefusesBadTensors) {
  auto with = [](auto change) {
    GgufWriter w = Small();
    change(w);
    return w.Build();
  };
  ExpectRefused(with([](GgufWriter& w) { w.infos[0].type = 16; }), StatusCode::kUnsupported,
                {"\"a\"", "16 (iq2_xxs)", "q4_0"});
  ExpectRefused(with([](GgufWriter& w) { w.infos[0].type = 4; }), StatusCode::kUnsupported, {"4 (q4_2)"});
  ExpectRefused(with([](GgufWriter& w) { w.infos[0].type = 9999; }), StatusCode::kUnsupported, {"9999 (?)"});
  ExpectRefused(with([](GgufWriter& w) { w.infos[0].dims = {}; }), StatusCode::kCorrupt, {"0 dimensions"});
  ExpectRefused(with([](GgufWriter& w) { w.infos[0].dims = {1, 1, 1, 1, 1}; }), StatusCode::kCorrupt, {"5 dimensions"});
  ExpectRefused(with([](GgufWriter& w) { w.infos[0].dims = {3, 0}; }), StatusCode::kCorrupt, {"dimension 1 is 0"});
  ExpectRefused(with([](GgufWriter& w) { w.infos[1].dims = {63}; }), StatusCode::kCorrupt,
                {"rows of 63", "32", "q8_0"});
  ExpectRefused(with([](GgufWriter& w) { w.infos[0].name = "b"; }), StatusCode::kCorrupt, {"\"b\" appears twice"});
  ExpectRefused(with([](GgufWriter& w) { w.infos[0].name = ""; }), StatusCode::kCorrupt, {"without a name"});
  const uint64_t big = uint64_t{1} << 32;
  ExpectRefused(with([&](GgufWriter& w) { w.infos[0].dims = {big, big}; }), StatusCode::kCorrupt, {"63 bits"});
  ExpectRefused(with([&](GgufWriter& w) { w.infos[0].dims = {big, big / 4, 8}; }), StatusCode::kCorrupt, {"63 bits"});
  ExpectRefused(with([&](GgufWriter& w) {
                  w.infos[0].dims = {big, big / 8};
                }),
                StatusCode::kCorrupt, {"63 bits"});  // in bytes
  ExpectRefused(with([&](GgufWriter& w) { w.infos[0].dims = {~uint64_t{0}}; }), StatusCode::kCorrupt, {"63 bits"});
  ExpectRefused(with([&](GgufWriter& w) { w.infos[0].dims = {big}; }), StatusCode::kCorrupt, {"17179869184 bytes"});
  ExpectRefused(with([](GgufWriter& w) { w.infos[1].offset = 33; }), StatusCode::kCorrupt, {"33", "alignment 32"});
  ExpectRefused(with([](GgufWriter& w) { w.infos[1].offset = 64; }), StatusCode::kCorrupt, {"\"b\" needs 68 bytes"});
  ExpectRefused(with([](GgufWriter& w) { w.infos[1].offset = ~uint64_t{0} - 31; }), StatusCode::kCorrupt,
                {"\"b\" needs"});
  ExpectRefused(with([](GgufWriter& w) { w.infos[1].dims = {96}; }), StatusCode::kCorrupt, {"\"b\" needs 102 bytes"});
}

// A directory of its own, removed at the end.
class SplitTest : public ::testing::Test {
 protected:
  void SetUp() override {
    std::string pattern = (std::filesystem::temp_directory_path() / "kvart_gguf_XXXXXX").string();
    ASSERT_NE(mkdtemp(pattern.data()), nullptr);
    dir_ = pattern;
  }
  void TearDown() override { std::filesystem::remove_all(dir_); }

  std::string PathOf(int no, int count) const {
    char name[64];
    std::snprintf(name, sizeof name, "m-%05d-of-%05d.gguf", no + 1, count);
    return (dir_ / name).string();
  }
  static GgufWriter Part(int no, int count, int n_tensors) {
    GgufWriter w;
    if (no == 0) w.String("general.architecture", "qwen2");
    w.Uint16("split.no", static_cast<uint16_t>(no));
    w.Uint16("split.count", static_cast<uint16_t>(count));
    w.Int32("split.tensors.count", n_tensors);
    if (no > 0) w.Tensor("t" + std::to_string(no), {2}, {static_cast<float>(no), 0.5f});
    return w;
  }
  void ExpectOpenFails(int no, StatusCode code, const std::string& words) const {
    const auto file = GgufFile::Open(PathOf(no, 3));
    ASSERT_FALSE(file.ok()) << words;
    EXPECT_EQ(StatusCodeName(file.status().code()), StatusCodeName(code)) << file.status().message();
    EXPECT_NE(file.status().message().find(words), std::string::npos) << file.status().message();
    EXPECT_FALSE(file.status().file().empty());
  }
  void WriteThree(int n_tensors = 2) const {
    for (int no = 0; no < 3; ++no) ASSERT_TRUE(Part(no, 3, n_tensors).Write(PathOf(no, 3)));
  }

  std::filesystem::path dir_;
};

TEST_F(SplitTest, OpensAllParts) {
  WriteThree();
  const auto file = GgufFile::Open(PathOf(0, 3));
  ASSERT_TRUE(file.ok()) << file.status().message();
  const GgufFile& f = **file;
  EXPECT_EQ(*f.GetString("general.architecture"), "qwen2");
  ASSERT_EQ(f.tensors().size(), 2u);
  uint64_t bytes = 0;
  for (int no = 0; no < 3; ++no) bytes += std::filesystem::file_size(PathOf(no, 3));
  EXPECT_EQ(f.file_bytes(), bytes);
  for (uint32_t no = 1; no < 3; ++no) {
    const GgufTensor* t = f.FindTensor("t" + std::to_string(no));
    ASSERT_NE(t, nullptr);
    EXPECT_EQ(t->part, no);
    ASSERT_NE(f.MappingOf(*t), nullptr);
    EXPECT_EQ(f.MappingOf(*t)->path(), PathOf(static_cast<int>(no), 3));
    float values[2];
    DecodeRow(t->type, t->data, 2, values);
    EXPECT_EQ(values[0], static_cast<float>(no));
  }
}

TEST_F(SplitTest, OpensOneUnsplitFile) {
  const std::string path = (dir_ / "one.gguf").string();
  ASSERT_TRUE(Small().Write(path));
  const auto file = GgufFile::Open(path);
  ASSERT_TRUE(file.ok()) << file.status().message();
  EXPECT_NE((*file)->MappingOf((*file)->tensors()[0]), nullptr);
  Touch(**file);
}

TEST_F(SplitTest, RefusesWhatDoesNotBelongTogether) {
  WriteThree();
  ExpectOpenFails(1, StatusCode::kInvalidArgument, "open the first, " + PathOf(0, 3));
  std::filesystem::remove(PathOf(2, 3));
  ExpectOpenFails(0, StatusCode::kNotFound, PathOf(2, 3));
  ASSERT_TRUE(Part(1, 3, 2).Write(PathOf(2, 3)));  // the second again
  ExpectOpenFails(0, StatusCode::kCorrupt, "part 2 of 3 with 2 tensors; the first part wants part 3 of 3");
  ASSERT_TRUE(Part(2, 4, 2).Write(PathOf(2, 3)));
  ExpectOpenFails(0, StatusCode::kCorrupt, "part 3 of 4");
  ASSERT_TRUE(Part(2, 3, 9).Write(PathOf(2, 3)));
  ExpectOpenFails(0, StatusCode::kCorrupt, "with 9 tensors");
  GgufWriter w = Part(2, 3, 2);
  w.infos[0].name = "t1";
  ASSERT_TRUE(w.Write(PathOf(2, 3)));
  ExpectOpenFails(0, StatusCode::kCorrupt, "\"t1\" is in an earlier part");
  ASSERT_TRUE(Small().Write(PathOf(2, 3)));  // no part at all
  ExpectOpenFails(0, StatusCode::kCorrupt, "part 1 of 1");
  WriteThree(3);
  ExpectOpenFails(0, StatusCode::kCorrupt, "split.tensors.count is 3, but the parts have 2");
  GgufWriter first = GgufWriter();
  first.Uint16("split.no", 3);
  first.Uint16("split.count", 3);
  ASSERT_TRUE(first.Write(PathOf(0, 3)));
  ExpectOpenFails(0, StatusCode::kCorrupt, "part 3 (split.no, from 0) of 3");
}

TEST_F(SplitTest, RefusesNamesThatDoNotLeadToTheParts) {
  const std::string path = (dir_ / "renamed.gguf").string();
  ASSERT_TRUE(Part(0, 3, 2).Write(path));
  const auto file = GgufFile::Open(path);
  ASSERT_FALSE(file.ok());
  EXPECT_EQ(file.status().code(), StatusCode::kInvalidArgument);
  EXPECT_NE(file.status().message().find("-00001-of-00003.gguf"), std::string::npos);
  const std::vector<uint8_t> bytes = Part(0, 3, 2).Build();
  EXPECT_EQ(Parse(bytes).status().code(), StatusCode::kUnsupported);
}

TEST_F(SplitTest, RefusesMissingEmptyAndOddFiles) {
  EXPECT_EQ(GgufFile::Open((dir_ / "absent.gguf").string()).status().code(), StatusCode::kNotFound);
  std::ofstream((dir_ / "empty.gguf").string()).flush();
  EXPECT_EQ(GgufFile::Open((dir_ / "empty.gguf").string()).status().code(), StatusCode::kCorrupt);
  EXPECT_FALSE(GgufFile::Open(dir_.string()).ok());
}

}  // namespace
}  // namespace kvart

// The decoder: the same numbers on every backend, layout, thread count, chunking and batch; and models that are wrong.
#include "model/decoder.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <cerrno>
#include <cmath>

#include "backend/locked_backend.h"
#include "model/rope.h"
#include "model/tiny_model.h"

namespace kvart {
namespace {

using testing::TinyModel;
using testing::TinyOptions;

struct Loaded {
  std::vector<uint8_t> bytes;
  std::shared_ptr<const GgufFile> file;
  std::unique_ptr<Decoder> decoder;
};

Loaded Load(const TinyOptions& options, std::unique_ptr<Backend> backend) {
  Loaded loaded;
  loaded.bytes = TinyModel(options).Build();
  auto file = GgufFile::Parse(loaded.bytes, "tiny.gguf");
  EXPECT_TRUE(file.ok()) << file.status().message();
  loaded.file = file.value();
  auto decoder = Decoder::Load(*loaded.file, std::move(backend), nullptr);
  EXPECT_TRUE(decoder.ok()) << decoder.status().message();
  loaded.decoder = std::move(decoder).value();
  return loaded;
}

Loaded Load(const TinyOptions& options, int threads = 1, bool float_activations = false) {
  return Load(options, NewCpuBackend({threads, float_activations}).value());
}

std::vector<int32_t> Tokens(int n) {
  std::mt19937 rng(5);
  std::vector<int32_t> ids(static_cast<size_t>(n));
  for (int32_t& id : ids) id = static_cast<int32_t>(rng() % 256);
  return ids;
}

std::shared_ptr<PageStore> Store(const KvGeometry& g) {
  StoreOptions options;
  options.payload_bytes = SealedOffsets(g).bytes();
  options.k_format = ToString(g.formats.k, true);
  options.v_format = ToString(g.formats.v, false);
  options.sinks = g.sinks;
  return PageStore::InMemory(g, options).value();
}

std::unique_ptr<KvSequence> Paged(Decoder& d, const char* format = "f16", std::shared_ptr<PageStore> store = nullptr) {
  const KvGeometry g = d.Geometry(ParseKvFormats(format, format).value(), 4);
  if (g.seals() && store == nullptr) store = Store(g);
  return NewPagedSequence(PagePool::New(g, d.backend().memory()).value(), store, 0).value();
}

// Logits of all tokens, computed in chunks of the given size.
std::vector<float> Logits(Decoder& d, KvSequence& kv, std::span<const int32_t> ids, size_t chunk) {
  const size_t n_vocab = static_cast<size_t>(d.config().n_vocab);
  std::vector<float> logits(ids.size() * n_vocab);
  for (size_t i = 0; i < ids.size(); i += chunk) {
    DecodeSpan span;
    span.sequence = &kv;
    span.tokens = ids.subspan(i, std::min(chunk, ids.size() - i));
    span.all_logits = logits.data() + i * n_vocab;
    const Status status = d.Forward({&span, 1});
    EXPECT_TRUE(status.ok()) << status.message();
  }
  return logits;
}

bool Same(const std::vector<float>& a, const std::vector<float>& b) {
  return a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size() * sizeof(float)) == 0;
}

class Architectures : public ::testing::TestWithParam<std::string> {};
INSTANTIATE_TEST_SUITE_P(All, Architectures, ::testing::Values("qwen2", "qwen3"),
                         [](const auto& p) { return p.param; });

TEST_P(Architectures, ResultsDoNotDependOnChunksThreadsOrLayout) {
  const std::vector<int32_t> ids = Tokens(300);
  for (const DType type : {DType::kF32, DType::kQ8_0, DType::kQ5_0}) {
    TinyOptions options;
    options.architecture = GetParam();
    options.type = type;
    Loaded one = Load(options);
    auto kv = Paged(*one.decoder);
    const std::vector<float> expected = Logits(*one.decoder, *kv, ids, 300);
    for (const float v : expected) ASSERT_TRUE(std::isfinite(v));
    for (const int threads : {1, 2, 8}) {
      Loaded other = Load(options, threads);
      for (const size_t chunk : {1, 7, 128}) {
        auto paged = Paged(*other.decoder);
        EXPECT_TRUE(Same(Logits(*other.decoder, *paged, ids, chunk), expected))
            << threads << " threads, chunks of " << chunk;
      }
      auto contiguous = NewContiguousSequence(other.decoder->Geometry({}), HostMemory()).value();
      EXPECT_TRUE(Same(Logits(*other.decoder, *contiguous, ids, 33), expected)) << "contiguous";
    }
  }
}

TEST_P(Architectures, ABatchOfSequencesEqualsEachAlone) {
  TinyOptions options;
  options.architecture = GetParam();
  options.type = DType::kQ8_0;
  Loaded m = Load(options, 2);
  const std::vector<int32_t> ids = Tokens(400);
  const size_t lengths[] = {1, 150, 9, 240};
  std::vector<std::unique_ptr<KvSequence>> together, alone;
  std::vector<DecodeSpan> batch;
  std::vector<std::vector<float>> logits;
  const size_t n_vocab = static_cast<size_t>(m.decoder->config().n_vocab);
  size_t first = 0;
  for (const size_t n : lengths) {
    together.push_back(Paged(*m.decoder));
    logits.emplace_back(n * n_vocab);
    DecodeSpan span;
    span.sequence = together.back().get();
    span.tokens = std::span(ids).subspan(first, n);
    span.all_logits = logits.back().data();
    batch.push_back(span);
    first += n;
  }
  ASSERT_TRUE(m.decoder->Forward(batch).ok());
  first = 0;
  for (size_t i = 0; i < batch.size(); ++i) {
    auto kv = Paged(*m.decoder);
    EXPECT_TRUE(Same(Logits(*m.decoder, *kv, std::span(ids).subspan(first, lengths[i]), 64), logits[i])) << i;
    first += lengths[i];
  }
}

TEST_P(Architectures, RunsOnMemoryThatTheHostCannotTouch) {
  TinyOptions options;
  options.architecture = GetParam();
  options.type = DType::kQ8_0;
  const std::vector<int32_t> ids = Tokens(200);
  Loaded cpu = Load(options, 2);
  auto kv = Paged(*cpu.decoder);
  const std::vector<float> expected = Logits(*cpu.decoder, *kv, ids, 64);

  auto backend = std::make_unique<LockedBackend>(*SelectKernels("").value(), BackendOptions{2, false});
  const LockedBackend& locked = *backend;
  Loaded m = Load(options, std::move(backend));
  auto remote = Paged(*m.decoder);
  EXPECT_TRUE(Same(Logits(*m.decoder, *remote, ids, 64), expected));
  EXPECT_GT(locked.operations(), 4 * 4 * 2);
  // The lock is real: even the system may not read there on our behalf.
  int pipe_ends[2];
  ASSERT_EQ(pipe(pipe_ends), 0);
  EXPECT_EQ(write(pipe_ends[1], HostPointer<void>(remote->View(0, 1).runs[0].k), 1), -1);
  EXPECT_EQ(errno, EFAULT);
  close(pipe_ends[0]);
  close(pipe_ends[1]);
}

TEST_P(Architectures, EveryUsableKernelTableGivesTheSameBits) {
  const std::vector<int32_t> ids = Tokens(140);
  for (const DType type : {DType::kF16, DType::kQ5_0, DType::kQ4_1}) {
    TinyOptions options;
    options.architecture = GetParam();
    options.type = type;
    std::vector<float> expected;
    for (const KernelTable* table : UsableKernels()) {
      Loaded m = Load(options, std::make_unique<CpuBackend>(*table, ThreadPlan::Anywhere(1), false));
      auto kv = Paged(*m.decoder);
      const std::vector<float> logits = Logits(*m.decoder, *kv, ids, 50);
      if (expected.empty()) expected = logits;
      EXPECT_TRUE(Same(logits, expected)) << table->name << " on " << Info(type).name;
    }
  }
}

TEST(Decoder, FloatAndInt8ActivationsAgreeRoughly) {
  TinyOptions options;
  options.type = DType::kQ8_0;
  const std::vector<int32_t> ids = Tokens(50);
  Loaded exact = Load(options, 1, true), fast = Load(options, 1, false);
  auto a = Paged(*exact.decoder, "f32"), b = Paged(*fast.decoder, "f32");
  const std::vector<float> x = Logits(*exact.decoder, *a, ids, 50), y = Logits(*fast.decoder, *b, ids, 50);
  double error = 0, size = 0;
  for (size_t i = 0; i < x.size(); ++i) {
    error += (x[i] - y[i]) * (x[i] - y[i]);
    size += x[i] * x[i];
  }
  EXPECT_GT(error, 0);
  EXPECT_LT(std::sqrt(error / size), 0.03);
}

TEST(Decoder, WildKeysStayFinite) {
  TinyOptions options;
  options.key_bias = 1000;
  Loaded m = Load(options);
  auto kv = Paged(*m.decoder);
  for (const float v : Logits(*m.decoder, *kv, Tokens(300), 128)) ASSERT_TRUE(std::isfinite(v));
}

TEST(Decoder, ACacheOfAnotherShapeIsRefusedByBothNames) {
  TinyOptions options;
  Loaded m = Load(options);
  KvGeometry other = m.decoder->Geometry({});
  other.n_layers = 3;
  auto kv = NewContiguousSequence(other, HostMemory()).value();
  const int32_t id = 1;
  DecodeSpan span;
  span.sequence = kv.get();
  span.tokens = {&id, 1};
  const Status status = m.decoder->Forward({&span, 1});
  EXPECT_EQ(status.code(), StatusCode::kInvalidArgument);
  EXPECT_NE(status.message().find("3 layers"), std::string::npos);
  EXPECT_NE(status.message().find("2 layers"), std::string::npos);
}

TEST(Decoder, IdsOutOfRangeAreRefused) {
  Loaded m = Load(TinyOptions{});
  auto kv = Paged(*m.decoder);
  for (const int32_t id : {-1, 288, 2000000000}) {
    DecodeSpan span;
    span.sequence = kv.get();
    span.tokens = {&id, 1};
    EXPECT_EQ(m.decoder->Forward({&span, 1}).code(), StatusCode::kInvalidArgument);
  }
  EXPECT_EQ(kv->size(), 0);
}

Status LoadStatus(const testing::GgufWriter& writer) {
  const std::vector<uint8_t> bytes = writer.Build();
  auto file = GgufFile::Parse(bytes, "bad.gguf");
  if (!file.ok()) return file.status();
  auto decoder = Decoder::Load(*file.value(), NewCpuBackend({1, false}).value(), nullptr);
  return decoder.ok() ? Status::Ok() : decoder.status();
}

TEST(BadModels, EveryMissingTensorIsNamed) {
  for (const char* arch : {"qwen2", "qwen3"}) {
    TinyOptions options;
    options.architecture = arch;
    const testing::GgufWriter whole = TinyModel(options);
    ASSERT_TRUE(LoadStatus(whole).ok());
    for (size_t i = 0; i < whole.infos.size(); ++i) {
      if (whole.infos[i].name == "output.weight") continue;  // without it the head is tied
      testing::GgufWriter spoilt = whole;
      spoilt.infos[i].name = "nothing";
      const Status status = LoadStatus(spoilt);
      ASSERT_FALSE(status.ok()) << whole.infos[i].name;
      EXPECT_NE(status.message().find(whole.infos[i].name), std::string::npos) << status.message();
      EXPECT_NE(status.message().find("missing"), std::string::npos) << status.message();
    }
  }
}

TEST(BadModels, EveryWrongShapeIsNamed) {
  const testing::GgufWriter whole = TinyModel(TinyOptions{});
  for (size_t i = 1; i < whole.infos.size(); ++i) {  // 0 is the embedding, which sets the size of the vocabulary
    testing::GgufWriter spoilt = whole;
    spoilt.infos[i].dims[0] /= 2;
    const Status status = LoadStatus(spoilt);
    ASSERT_FALSE(status.ok()) << whole.infos[i].name;
    EXPECT_NE(status.message().find("shape"), std::string::npos) << status.message();
  }
}

TEST(BadModels, MetadataOutOfRangeIsRefused) {
  const auto with = [](const char* key, auto value) {
    testing::GgufWriter w;
    w.String("general.architecture", "qwen2");
    const auto number = [&](const char* name, uint32_t v) {
      if (std::string(name) != key)
        w.Uint32(std::string("qwen2.") + name, v);
      else
        w.Uint32(std::string("qwen2.") + name, static_cast<uint32_t>(value));
    };
    number("block_count", 2);
    number("context_length", 64);
    number("embedding_length", 64);
    number("feed_forward_length", 96);
    number("attention.head_count", 4);
    number("attention.head_count_kv", 2);
    number("attention.key_length", 16);
    w.Float32("qwen2.attention.layer_norm_rms_epsilon", 1e-6f);
    w.Tensor("token_embd.weight", {64, 4}, std::vector<float>(256));
    return LoadStatus(w);
  };
  const std::pair<const char*, uint32_t> cases[] = {{"block_count", 0},
                                                    {"block_count", 2000000000},
                                                    {"attention.head_count", 0},
                                                    {"attention.head_count_kv", 3},
                                                    {"attention.head_count_kv", 0},
                                                    {"embedding_length", 33},
                                                    {"feed_forward_length", 7},
                                                    {"attention.key_length", 12},
                                                    {"attention.key_length", 4096},
                                                    {"context_length", 0}};
  for (const auto& [key, value] : cases) {
    const Status status = with(key, value);
    ASSERT_FALSE(status.ok()) << key;
    EXPECT_NE(status.message().find(std::string("qwen2.").append(key)), std::string::npos) << status.message();
  }
}

TEST(BadModels, AnotherArchitectureIsNamed) {
  testing::GgufWriter w;
  w.String("general.architecture", "llama");
  const Status status = LoadStatus(w);
  EXPECT_EQ(status.code(), StatusCode::kUnsupported);
  EXPECT_NE(status.message().find("'llama'"), std::string::npos);
}

TEST(Rope, ScalingsDoWhatTheirPapersSay) {
  RopeConfig plain;
  float a[16], b[16];
  Rope(plain, 16).Angles(100, a);
  RopeConfig linear = plain;
  linear.scaling = RopeScaling::kLinear;
  linear.factor = 4;
  Rope(linear, 16).Angles(400, b);
  for (int i = 0; i < 16; ++i) EXPECT_NEAR(a[i], b[i], 1e-6);  // four times the positions on the same circle

  RopeConfig ntk = plain;
  ntk.scaling = RopeScaling::kNtk;
  ntk.factor = 4;
  Rope(ntk, 16).Angles(100, b);
  EXPECT_FLOAT_EQ(a[0], b[0]);  // the fastest pair is left alone
  Rope(ntk, 16).Angles(400, b);
  EXPECT_NEAR(a[14], b[14], 1e-6);  // the slowest is stretched by the whole factor

  RopeConfig yarn = plain;
  yarn.scaling = RopeScaling::kYarn;
  yarn.factor = 4;
  yarn.original_ctx = 4096;
  yarn.beta_fast = 32;
  yarn.beta_slow = 1;
  Rope(yarn, 16).Angles(100, b);
  const float magnitude = 0.1f * std::log(4.0f) + 1.0f;
  EXPECT_NEAR(std::hypot(b[0], b[1]), magnitude, 1e-6);
  EXPECT_NEAR(b[0], a[0] * magnitude, 1e-5);
}

}  // namespace
}  // namespace kvart

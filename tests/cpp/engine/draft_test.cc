// Drafts: the text, its K/V and what a durable session keeps are the same with them as without.
#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>

#include "engine/engine.h"
#include "model/tiny_model.h"

namespace kvart {
namespace {

namespace fs = std::filesystem;

class Draft : public ::testing::Test {
 protected:
  void SetUp() override {
    dir_ = fs::temp_directory_path() / ("kvart_draft_" + std::to_string(getpid()));
    fs::remove_all(dir_);
    fs::create_directories(dir_);
    testing::TinyOptions options;
    options.type = DType::kQ8_0;
    options.key_bias = 50;
    ASSERT_TRUE(testing::TinyModel(options).Write((dir_ / "tiny.gguf").string()));
    LoadOptions load;
    load.n_threads = 2;
    load.kv_dir = (dir_ / "kv").string();
    auto model = Model::Load((dir_ / "tiny.gguf").string(), load);
    ASSERT_TRUE(model.ok()) << model.status().message();
    model_ = model.value();
  }
  void TearDown() override {
    model_.reset();
    fs::remove_all(dir_);
  }

  std::unique_ptr<Session> New(SessionOptions options) {
    options.in_memory = options.name.empty();
    auto session = model_->NewSession(options);
    EXPECT_TRUE(session.ok()) << session.status().message();
    return std::move(session).value();
  }
  // A text that repeats itself, so that guesses are made; the tiny model's own text soon goes round in circles as well.
  static std::vector<int32_t> Ids(int n) {
    std::vector<int32_t> ids;
    for (int i = 0; i < n; ++i) ids.push_back(i % 11 * 13 % 250);
    return ids;
  }
  static std::vector<int32_t> Generate(Session& session, int n, SamplerOptions options = {}) {
    Sampler sampler(options);
    std::vector<int32_t> out;
    for (int i = 0; i < n; ++i) {
      auto id = session.Next(sampler);
      EXPECT_TRUE(id.ok()) << id.status().message();
      if (!id.ok()) break;
      out.push_back(*id);
    }
    return out;
  }
  static std::vector<float> Kv(Session& session) {
    std::vector<float> k, v;
    EXPECT_TRUE(session.ReadKv(1, &k, &v).ok());
    k.insert(k.end(), v.begin(), v.end());
    return k;
  }

  fs::path dir_;
  std::shared_ptr<Model> model_;
};

TEST_F(Draft, TextAndKvAreTheSameAndGuessesComeTrue) {
  for (const char* format : {"f16", "int4"}) {
    for (const int64_t window : {0, 128}) {
      for (const float temperature : {0.0f, 0.8f}) {
        SamplerOptions sampler;
        sampler.temperature = temperature;
        sampler.seed = 5;
        SessionOptions options;
        options.k_format = options.v_format = format;
        options.window = std::string(format) == "int4" ? window : 0;
        auto plain = New(options);
        ASSERT_TRUE(plain->Append(Ids(100), nullptr).ok());
        const auto expected = Generate(*plain, 200, sampler);
        for (const int64_t draft : {1, 3, 8, 40}) {
          options.draft = draft;
          auto drafted = New(options);
          ASSERT_TRUE(drafted->Append(Ids(100), nullptr).ok());
          EXPECT_EQ(Generate(*drafted, 200, sampler), expected) << format << " draft " << draft;
          EXPECT_EQ(drafted->stats().logits_hash, plain->stats().logits_hash);
          EXPECT_EQ(Kv(*drafted), Kv(*plain)) << format << " draft " << draft << " window " << options.window;
          EXPECT_EQ(drafted->stats().decode_tokens, plain->stats().decode_tokens);
          if (temperature == 0) EXPECT_GT(drafted->stats().accepted_tokens, 50u) << format << " draft " << draft;
          EXPECT_GE(drafted->stats().drafted_tokens, drafted->stats().accepted_tokens);
        }
      }
    }
  }
}

// Wherever generation stops, guesses that nobody has drawn leave no trace in what comes next.
TEST_F(Draft, EveryCallMayComeInBetween) {
  SessionOptions options;
  auto plain = New(options);
  ASSERT_TRUE(plain->Append(Ids(120), nullptr).ok());
  for (int n = 1; n < 24; ++n) {
    options.draft = 8;
    auto drafted = New(options);
    ASSERT_TRUE(drafted->Append(Ids(120), nullptr).ok());
    const auto text = Generate(*drafted, n);
    auto fork = std::move(drafted->Fork()).value();
    auto rewound = std::move(drafted->Fork()).value();
    ASSERT_TRUE(rewound->Rewind(120 + n / 2).ok());
    ASSERT_TRUE(drafted->Append(Ids(9), nullptr).ok());
    ASSERT_TRUE(plain->Rewind(120).ok());
    EXPECT_EQ(Generate(*plain, n), text) << n;
    auto base = std::move(plain->Fork()).value();
    EXPECT_EQ(Generate(*fork, 12), Generate(*base, 12)) << n;
    ASSERT_TRUE(plain->Append(Ids(9), nullptr).ok());
    EXPECT_EQ(Kv(*drafted), Kv(*plain)) << n;
    ASSERT_TRUE(base->Rewind(120 + n / 2).ok());
    EXPECT_EQ(Generate(*rewound, 12), Generate(*base, 12)) << n;
  }
}

TEST_F(Draft, OfADurableSessionOnlyDrawnTokensAreKept) {
  SessionOptions options;
  options.draft = 16;
  options.name = "diary";
  std::vector<int32_t> text;
  {
    auto session = New(options);
    ASSERT_TRUE(session->Append(Ids(120), nullptr).ok());
    Generate(*session, 6);
    text = session->tokens();
    ASSERT_TRUE(session->Close().ok());
  }
  auto again = New(options);
  EXPECT_EQ(again->tokens(), text);
  options.name.clear();
  options.draft = 0;
  auto fresh = New(options);
  ASSERT_TRUE(fresh->Append(text, nullptr).ok());
  EXPECT_EQ(Generate(*again, 30), Generate(*fresh, 30));
}

TEST_F(Draft, EndsWithTheContext) {
  SessionOptions options;
  options.draft = 16;
  options.ctx = 60;
  auto session = New(options);
  ASSERT_TRUE(session->Append(Ids(50), nullptr).ok());
  EXPECT_EQ(Generate(*session, 10).size(), 10u);
  Sampler sampler({});
  EXPECT_EQ(session->Next(sampler).status().code(), StatusCode::kFull);
}

}  // namespace
}  // namespace kvart

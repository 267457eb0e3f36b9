// Sessions: append, generate, rewind, fork, cancel, a full context, two threads, fork().
#include "engine/engine.h"

#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <thread>

#include "model/tiny_model.h"

namespace kvart {
namespace {

namespace fs = std::filesystem;

class Engine : public ::testing::Test {
 protected:
  void SetUp() override {
    path_ = fs::temp_directory_path() / ("kvart_engine_" + std::to_string(getpid()) + ".gguf");
    testing::TinyOptions options;
    options.type = DType::kQ8_0;
    ASSERT_TRUE(testing::TinyModel(options).Write(path_.string()));
    LoadOptions load;
    load.n_threads = 2;
    auto model = Model::Load(path_.string(), load);
    ASSERT_TRUE(model.ok()) << model.status().message();
    model_ = model.value();
  }
  void TearDown() override { fs::remove(path_); }

  std::unique_ptr<Session> New(SessionOptions options = {}) {
    auto session = model_->NewSession(options);
    EXPECT_TRUE(session.ok()) << session.status().message();
    return std::move(session).value();
  }
  static std::vector<int32_t> Ids(int n) {
    std::vector<int32_t> ids;
    for (int i = 0; i < n; ++i) ids.push_back(i * 37 % 250);
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

  fs::path path_;
  std::shared_ptr<Model> model_;
};

TEST_F(Engine, CachedEqualsRecomputedInEveryLayoutAndChunking) {
  SessionOptions uncached;
  uncached.k_format = uncached.v_format = "f16";
  uncached.cache = false;
  auto reference = New(uncached);
  ASSERT_TRUE(reference->Append(Ids(150), nullptr).ok());
  const std::vector<int32_t> expected = Generate(*reference, 20);
  for (const KvLayout layout : {KvLayout::kPaged, KvLayout::kContiguous}) {
    for (const int chunk : {1, 7, 128, 512}) {
      SessionOptions options;
      options.k_format = options.v_format = "f16";
      options.layout = layout;
      options.chunk = chunk;
      auto session = New(options);
      ASSERT_TRUE(session->Append(Ids(150), nullptr).ok());
      EXPECT_EQ(Generate(*session, 20), expected);
      EXPECT_EQ(session->stats().logits_hash, reference->stats().logits_hash);
      EXPECT_EQ(session->stats().recomputed_positions, 0u);
    }
  }
  EXPECT_GT(reference->stats().recomputed_positions, 150u * 19);
}

TEST_F(Engine, RewindAndGoOnEqualsAFreshStart) {
  auto session = New();
  ASSERT_TRUE(session->Append(Ids(200), nullptr).ok());
  Generate(*session, 10);
  for (const int64_t keep : {205, 200, 130, 128, 127, 1}) {
    ASSERT_TRUE(session->Rewind(keep).ok());
    const std::vector<int32_t> kept = session->tokens();
    const std::vector<int32_t> again = Generate(*session, 5);
    auto fresh = New();
    ASSERT_TRUE(fresh->Append(kept, nullptr).ok());
    EXPECT_EQ(Generate(*fresh, 5), again) << keep;
  }
  EXPECT_EQ(session->Rewind(7).code(), StatusCode::kInvalidArgument);
  EXPECT_EQ(session->Rewind(-1).code(), StatusCode::kInvalidArgument);
  ASSERT_TRUE(session->Rewind(0).ok());
  Sampler sampler({});
  EXPECT_EQ(session->Next(sampler).status().code(), StatusCode::kInvalidArgument);
}

TEST_F(Engine, ForksGoTheirOwnWays) {
  auto a = New();
  ASSERT_TRUE(a->Append(Ids(140), nullptr).ok());
  const std::vector<int32_t> expected = [&] {
    auto copy = a->Fork();
    return Generate(*copy.value(), 12);
  }();
  auto b = std::move(a->Fork()).value();
  ASSERT_TRUE(b->Append(Ids(3), nullptr).ok());
  Generate(*b, 10);
  EXPECT_EQ(Generate(*a, 12), expected);
}

TEST_F(Engine, CancelLeavesTheSessionAsItWas) {
  SessionOptions options;
  options.chunk = 16;
  auto session = New(options);
  ASSERT_TRUE(session->Append(Ids(20), nullptr).ok());
  auto untouched = std::move(session->Fork()).value();
  int calls = 0;
  const Status status = session->Append(Ids(200), [&](double done) { return done < 0.3 && ++calls < 100; });
  EXPECT_EQ(status.code(), StatusCode::kCancelled);
  EXPECT_LT(calls, 8);
  EXPECT_EQ(session->size(), 20);
  EXPECT_EQ(Generate(*session, 8), Generate(*untouched, 8));
}

TEST_F(Engine, AFullContextIsAnErrorAndTheSessionStaysUsable) {
  SessionOptions options;
  options.ctx = 10;
  auto session = New(options);
  EXPECT_EQ(session->Append(Ids(11), nullptr).code(), StatusCode::kFull);
  EXPECT_EQ(session->size(), 0);
  ASSERT_TRUE(session->Append(Ids(8), nullptr).ok());
  EXPECT_EQ(Generate(*session, 2).size(), 2u);
  Sampler sampler({});
  EXPECT_EQ(session->Next(sampler).status().code(), StatusCode::kFull);
  ASSERT_TRUE(session->Rewind(5).ok());
  EXPECT_EQ(Generate(*session, 5).size(), 5u);
}

TEST_F(Engine, TheTrainedLengthIsTheDefaultAndNothingIsReserved) {
  auto session = New();
  EXPECT_EQ(session->ctx(), 1024);
  EXPECT_EQ(session->stats().kv_bytes, 0u);
}

TEST_F(Engine, BadOptionsAreNamed) {
  const auto refused = [&](SessionOptions options, const char* word) {
    auto session = model_->NewSession(options);
    ASSERT_FALSE(session.ok());
    EXPECT_NE(session.status().message().find(word), std::string::npos) << session.status().message();
  };
  SessionOptions o;
  o.k_format = "q4_0";
  refused(o, "q4_0");
  o = {};
  o.ctx = -1;
  refused(o, "ctx");
  o = {};
  o.chunk = 0;
  refused(o, "chunk");
  auto session = New();
  EXPECT_NE(session->Append(std::vector<int32_t>{1, 288}, nullptr).message().find("288"), std::string::npos);
  EXPECT_EQ(session->size(), 0);
  std::vector<float> k, v;
  EXPECT_FALSE(session->ReadKv(2, &k, &v).ok());
  LoadOptions load;
  load.n_threads = 100000;
  EXPECT_FALSE(Model::Load(path_.string(), load).ok());
  load = {};
  load.backend = "cuda";
  EXPECT_EQ(Model::Load(path_.string(), load).status().code(), StatusCode::kUnsupported);
  load.backend = "abacus";
  EXPECT_EQ(Model::Load(path_.string(), load).status().code(), StatusCode::kInvalidArgument);
  EXPECT_EQ(Model::Load(path_.string() + "x", {}).status().code(), StatusCode::kNotFound);
}

TEST_F(Engine, LoadingCanBeCancelled) {
  LoadOptions load;
  load.progress = [](double done) { return done < 0.5; };
  EXPECT_EQ(Model::Load(path_.string(), load).status().code(), StatusCode::kCancelled);
}

TEST_F(Engine, ReadKvIsTheSameInEveryLayout) {
  std::vector<float> k[2], v[2];
  for (const int i : {0, 1}) {
    SessionOptions options;
    options.k_format = options.v_format = "f16";
    options.layout = i == 0 ? KvLayout::kPaged : KvLayout::kContiguous;
    auto session = New(options);
    ASSERT_TRUE(session->Append(Ids(150), nullptr).ok());
    Generate(*session, 1);  // its K/V are computed by ReadKv
    ASSERT_TRUE(session->ReadKv(1, &k[i], &v[i]).ok());
  }
  EXPECT_EQ(k[0].size(), 2u * 151 * 16);
  EXPECT_EQ(k[0], k[1]);
  EXPECT_EQ(v[0], v[1]);
}

TEST_F(Engine, TwoThreadsOnOneModelWaitForEachOther) {
  auto alone = New();
  ASSERT_TRUE(alone->Append(Ids(100), nullptr).ok());
  SamplerOptions sampling;
  sampling.temperature = 1;
  sampling.seed = 3;
  const std::vector<int32_t> expected = Generate(*alone, 40, sampling);
  std::vector<std::vector<int32_t>> results(4);
  std::vector<std::thread> threads;
  for (auto& result : results) {
    threads.emplace_back([&] {
      auto session = New();
      EXPECT_TRUE(session->Append(Ids(100), nullptr).ok());
      result = Generate(*session, 40, sampling);
    });
  }
  for (std::thread& thread : threads) thread.join();
  for (const auto& result : results) EXPECT_EQ(result, expected);
}

TEST_F(Engine, AfterForkEveryCallIsRefusedAndNothingHangs) {
  auto session = New();
  ASSERT_TRUE(session->Append(Ids(5), nullptr).ok());
  const pid_t child = fork();
  if (child == 0) {
    const bool refused = session->Append(Ids(1), nullptr).code() == StatusCode::kInvalidArgument &&
                         !model_->NewSession({}).ok() &&
                         session->Rewind(1).message().find("fork()") != std::string::npos;
    session.reset();
    model_.reset();
    _exit(refused ? 0 : 1);
  }
  int status = 0;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0);
  EXPECT_EQ(Generate(*session, 3).size(), 3u);
}

}  // namespace
}  // namespace kvart

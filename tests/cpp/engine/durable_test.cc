// Sessions that outlive the process: resume, share, save, load, import; and the rule that a hit equals a miss, bit for
// bit.
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>

#include "engine/engine.h"
#include "model/tiny_model.h"

namespace kvart {
namespace {

namespace fs = std::filesystem;

class Durable : public ::testing::Test {
 protected:
  void SetUp() override {
    dir_ = fs::temp_directory_path() / ("kvart_durable_" + std::to_string(getpid()) + "_" +
                                        ::testing::UnitTest::GetInstance()->current_test_info()->name());
    fs::remove_all(dir_);
    fs::create_directories(dir_);
    testing::TinyOptions options;
    options.type = DType::kQ8_0;
    options.key_bias = 50;
    ASSERT_TRUE(testing::TinyModel(options).Write((dir_ / "tiny.gguf").string()));
  }
  void TearDown() override { fs::remove_all(dir_); }

  std::shared_ptr<Model> Load(bool durable = true, int threads = 2) {
    LoadOptions load;
    load.n_threads = threads;
    if (durable) load.kv_dir = (dir_ / "kv").string();
    auto model = Model::Load((dir_ / "tiny.gguf").string(), load);
    EXPECT_TRUE(model.ok()) << model.status().message();
    return model.value();
  }
  static std::unique_ptr<Session> New(Model& model, const std::string& name = "", SessionOptions options = {}) {
    options.name = name;
    auto session = model.NewSession(options);
    EXPECT_TRUE(session.ok()) << session.status().message();
    return session.ok() ? std::move(session).value() : nullptr;
  }
  static std::vector<int32_t> Ids(int n, int seed = 0) {
    std::vector<int32_t> ids;
    for (int i = 0; i < n; ++i) ids.push_back((i * 37 + i / 11 + seed * 101) % 250);
    return ids;
  }
  static std::vector<int32_t> Generate(Session& session, int n) {
    Sampler sampler({});
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
    std::vector<float> all, k, v;
    for (int layer = 0; layer < 2; ++layer) {
      EXPECT_TRUE(session.ReadKv(layer, &k, &v).ok());
      all.insert(all.end(), k.begin(), k.end());
      all.insert(all.end(), v.begin(), v.end());
    }
    return all;
  }
  static std::vector<float> LastLogits(Session& session) {
    std::vector<float> logits(288);
    EXPECT_TRUE(session.LastLogits(logits.data()).ok());
    return logits;
  }

  fs::path dir_;
};

// The one test of the rule: whatever was cut where, computed in what pieces, by how many threads, found or computed:
// equal K/V, equal logits.
TEST_F(Durable, AHitEqualsAMissAtEveryCutChunkAndThreadCount) {
  const int total = 3 * 128 + 40;
  const std::vector<int32_t> ids = Ids(total);
  std::vector<float> expected_kv, expected_logits;
  {
    auto model = Load(false, 1);
    auto session = New(*model);
    ASSERT_TRUE(session->Append(ids, nullptr).ok());
    expected_logits = LastLogits(*session);
    expected_kv = Kv(*session);
  }
  for (const int threads : {1, 2, 8}) {
    auto model = Load(false, threads);
    for (const int chunk : {1, 7, 128, 512}) {
      if (chunk == 1 && threads != 2) continue;  // slow, and the same code
      SessionOptions options;
      options.chunk = chunk;
      for (int cut = chunk == 128 ? 0 : 5; cut <= 3 * 128; cut += chunk == 128 ? 1 : 61) {
        // The store holds the pages of ids: the first `cut` tokens hit as far as they are whole pages, then another
        // text diverges, then we come back.
        auto session = New(*model, "", options);
        if (cut > 0) {
          ASSERT_TRUE(session->Append(std::span(ids).first(static_cast<size_t>(cut)), nullptr).ok());
        }
        if (cut % 3 == 0) {
          ASSERT_TRUE(session->Append(Ids(9, 1), nullptr).ok());
          ASSERT_TRUE(session->Rewind(cut).ok());
        }
        ASSERT_TRUE(session->Append(std::span(ids).subspan(static_cast<size_t>(cut)), nullptr).ok());
        ASSERT_EQ(LastLogits(*session), expected_logits) << threads << " threads, chunk " << chunk << ", cut " << cut;
        if (cut % 32 == 0) {
          ASSERT_EQ(Kv(*session), expected_kv) << cut;
        }
      }
    }
    EXPECT_GT(model->stats().store_hits, 100u);
  }
}

TEST_F(Durable, ResumeAfterACleanCloseComputesNothing) {
  std::vector<int32_t> expected, tokens;
  {
    auto model = Load();
    auto session = New(*model, "talk");
    EXPECT_FALSE(session->resumed().existed);
    ASSERT_TRUE(session->Append(Ids(300), nullptr).ok());
    Generate(*session, 5);
    tokens = session->tokens();
    auto twin = std::move(session->Fork()).value();
    expected = Generate(*twin, 20);
    ASSERT_TRUE(session->Close().ok());
    EXPECT_EQ(session->Append(Ids(1), nullptr).code(), StatusCode::kInvalidArgument);
  }
  auto model = Load();
  auto session = New(*model, "talk");
  EXPECT_TRUE(session->resumed().existed);
  EXPECT_EQ(session->resumed().tokens, 305);
  EXPECT_EQ(session->resumed().from_pages, 256);
  EXPECT_EQ(session->resumed().from_open_page, 49);
  EXPECT_EQ(session->resumed().to_compute, 0);
  EXPECT_EQ(session->resumed().note, "");
  EXPECT_EQ(session->tokens(), tokens);
  EXPECT_EQ(Generate(*session, 20), expected);
}

TEST_F(Durable, KilledAnywhereNothingThatWasShownIsLost) {
  SessionOptions options;
  options.ctx = 1000000;  // a fast child runs far ahead of its reader
  for (int round = 0; round < 6; ++round) {
    int ends[2];
    ASSERT_EQ(pipe(ends), 0);
    const pid_t child = fork();
    if (child == 0) {
      close(ends[0]);
      auto model = Load(true, 1);
      auto session = New(*model, "talk", options);
      if (session->size() == 0) (void)session->Append(Ids(100), nullptr);
      Sampler sampler({});
      for (int i = 0; i < 100000; ++i) {
        const auto id = session->Next(sampler);
        if (!id.ok() || write(ends[1], &*id, sizeof *id) != sizeof *id) _exit(1);
      }
      _exit(0);
    }
    close(ends[1]);
    std::vector<int32_t> shown(static_cast<size_t>(50 + 13 * round));
    for (int32_t& id : shown) ASSERT_EQ(read(ends[0], &id, sizeof id), static_cast<ssize_t>(sizeof id));
    kill(child, SIGKILL);
    int32_t id;
    while (read(ends[0], &id, sizeof id) == static_cast<ssize_t>(sizeof id)) shown.push_back(id);
    close(ends[0]);
    int status;
    waitpid(child, &status, 0);

    auto model = Load(true, 1);
    auto session = New(*model, "talk", options);
    const std::vector<int32_t> tokens = session->tokens();
    ASSERT_GE(tokens.size(), shown.size());
    // What was shown is in there, at the end but for what came after the last one that was shown.
    const auto at = std::search(tokens.begin(), tokens.end(), shown.begin(), shown.end());
    ASSERT_NE(at, tokens.end()) << round;
    auto fresh = New(*model, "", options);
    ASSERT_TRUE(fresh->Append(tokens, nullptr).ok());
    EXPECT_EQ(LastLogits(*session), LastLogits(*fresh));
  }
}

TEST_F(Durable, RunsOfTheProgramShareAPrefix) {
  const std::vector<int32_t> prefix = Ids(256 + 10);
  std::vector<int32_t> expected;
  {
    auto model = Load();
    auto session = New(*model);
    ASSERT_TRUE(session->Append(prefix, nullptr).ok());
    EXPECT_EQ(session->stats().reused_positions, 0u);
    expected = Generate(*session, 8);
  }
  auto model = Load();
  auto session = New(*model);
  ASSERT_TRUE(session->Append(prefix, nullptr).ok());
  EXPECT_EQ(session->stats().reused_positions, 256u);
  EXPECT_EQ(Generate(*session, 8), expected);
}

TEST_F(Durable, ManySessionsKeepOneCopyOfTheirPrefix) {
  auto model = Load(false);
  SessionOptions options;
  options.ctx = 1100;
  const std::vector<int32_t> prefix = Ids(1024);
  std::vector<std::unique_ptr<Session>> sessions;
  for (int i = 0; i < 200; ++i) {
    sessions.push_back(New(*model, "", options));
    std::vector<int32_t> ids = prefix;
    ids.push_back(i);
    ids.push_back(i + 1);
    ASSERT_TRUE(sessions.back()->Append(ids, nullptr).ok());
  }
  EXPECT_EQ(model->stats().reused_positions, 199u * 1024);
  EXPECT_LE(model->stats().pool_requests,
            200u + 8 + 8 + 1);  // open pages, the first one's on the way, the sealed ones, the sinks
}

TEST_F(Durable, ASecondHolderIsRefusedAndNamesAreChecked) {
  auto model = Load();
  auto session = New(*model, "talk");
  SessionOptions options;
  options.name = "talk";
  const auto second = model->NewSession(options);
  EXPECT_EQ(second.status().code(), StatusCode::kBusy) << second.status().message();
  EXPECT_NE(second.status().message().find(std::to_string(getpid())), std::string::npos) << second.status().message();
  options.name = "../evil";
  EXPECT_EQ(model->NewSession(options).status().code(), StatusCode::kInvalidArgument);
  auto memory_only = Load(false);
  options.name = "talk2";
  EXPECT_NE(memory_only->NewSession(options).status().message().find("kv_dir"), std::string::npos);
}

TEST_F(Durable, AnotherFormatReplaysTheIdsAndSaysSo) {
  std::vector<int32_t> tokens;
  {
    auto model = Load();
    auto session = New(*model, "talk");
    ASSERT_TRUE(session->Append(Ids(300), nullptr).ok());
    tokens = session->tokens();
    ASSERT_TRUE(session->Close().ok());
  }
  auto model = Load();
  SessionOptions options;
  options.k_format = "int8";
  auto session = New(*model, "talk", options);
  EXPECT_EQ(session->tokens(), tokens);
  EXPECT_EQ(session->resumed().from_pages, 0);
  EXPECT_EQ(session->resumed().to_compute, 300);
  EXPECT_NE(session->resumed().note.find("int8"), std::string::npos) << session->resumed().note;
  EXPECT_EQ(Generate(*session, 3).size(), 3u);
}

TEST_F(Durable, SaveAndLoadInEveryFormat) {
  auto model = Load(false);
  for (const char* format : {"f32", "f16", "int8", "int4", "int4-sym", "int4-token", "int4-knorm", "int4-g32"}) {
    SessionOptions options;
    options.k_format = options.v_format = format;
    auto session = New(*model, "", options);
    ASSERT_TRUE(session->Append(Ids(300), nullptr).ok());
    Generate(*session, 4);
    const std::string path = (dir_ / (std::string(format) + ".saved")).string();
    const Status saved = session->Save(path);
    ASSERT_TRUE(saved.ok()) << saved.message();
    auto again = Load(false);
    auto loaded = again->LoadSession(path, {});
    ASSERT_TRUE(loaded.ok()) << loaded.status().message();
    EXPECT_EQ((*loaded)->tokens(), session->tokens());
    if (format[0] == 'i') {
      EXPECT_EQ((*loaded)->resumed().from_pages, 256) << format;
      EXPECT_EQ((*loaded)->resumed().to_compute, 0) << format;
    }
    EXPECT_EQ(Kv(**loaded), Kv(*session)) << format;
    EXPECT_EQ(Generate(**loaded, 10), Generate(*session, 10)) << format;
  }
}

TEST_F(Durable, ASpoiltSavedSessionIsRefusedAtEveryByte) {
  auto model = Load(false);
  auto session = New(*model);
  ASSERT_TRUE(session->Append(Ids(140), nullptr).ok());
  const std::string path = (dir_ / "s.saved").string();
  ASSERT_TRUE(session->Save(path).ok());
  std::ifstream in(path, std::ios::binary);
  const std::string bytes((std::istreambuf_iterator<char>(in)), {});
  const auto refused = [&](const std::string& spoilt) {
    std::ofstream(dir_ / "bad.saved", std::ios::binary) << spoilt;
    auto loaded = model->LoadSession((dir_ / "bad.saved").string(), {});
    return !loaded.ok() || ((*loaded)->tokens() == session->tokens() && !(*loaded)->resumed().note.empty());
  };
  for (size_t at = 0; at < bytes.size(); at += at < 900 ? 7 : 997) {
    EXPECT_TRUE(refused(bytes.substr(0, at))) << "cut at " << at;
    std::string flipped = bytes;
    flipped[at] = static_cast<char>(flipped[at] ^ 0x10);
    if (flipped != bytes && !refused(flipped)) {
      // Sinks, window and counts stand outside the checksums: they are checked by what they lead to.
      auto loaded = model->LoadSession((dir_ / "bad.saved").string(), {});
      EXPECT_EQ((*loaded)->tokens(), session->tokens()) << "flipped at " << at;
    }
  }
  testing::TinyOptions other;
  other.seed = 2;
  other.type = DType::kQ8_0;
  ASSERT_TRUE(testing::TinyModel(other).Write((dir_ / "other.gguf").string()));
  auto stranger = Model::Load((dir_ / "other.gguf").string(), {}).value();
  EXPECT_EQ(stranger->LoadSession(path, {}).status().code(), StatusCode::kUnsupported);
}

TEST_F(Durable, ImportedKvAreUsedAndNeverShared) {
  auto model = Load(false);
  SessionOptions options;
  options.k_format = options.v_format = "f32";
  auto session = New(*model, "", options);
  ASSERT_TRUE(session->Append(Ids(200), nullptr).ok());
  std::vector<std::vector<float>> k(2), v(2);
  for (int layer = 0; layer < 2; ++layer) {
    ASSERT_TRUE(session->ReadKv(layer, &k[static_cast<size_t>(layer)], &v[static_cast<size_t>(layer)]).ok());
  }
  auto copy = New(*model, "", options);
  ASSERT_TRUE(copy->ImportKv(Ids(200), k, v).ok());
  EXPECT_EQ(Kv(*copy), Kv(*session));
  EXPECT_EQ(Generate(*copy, 10), Generate(*session, 10));
  k[0].pop_back();
  EXPECT_NE(copy->ImportKv(Ids(200), k, v).message().find("(2, 200, 16)"), std::string::npos);
  auto sealed = New(*model);
  EXPECT_EQ(sealed->ImportKv(Ids(200), k, v).code(), StatusCode::kUnsupported);
  for (const int n : {1, 3, 64, 100, 129, 300}) {  // open pages of every capacity
    auto source = New(*model, "", options);
    ASSERT_TRUE(source->Append(Ids(n), nullptr).ok());
    for (int layer = 0; layer < 2; ++layer) {
      ASSERT_TRUE(source->ReadKv(layer, &k[static_cast<size_t>(layer)], &v[static_cast<size_t>(layer)]).ok());
    }
    auto target = New(*model, "", options);
    ASSERT_TRUE(target->ImportKv(Ids(n), k, v).ok());
    EXPECT_EQ(Kv(*target), Kv(*source)) << n;
  }
}

TEST_F(Durable, ASlidingWindowGoesOnForeverInFlatMemory) {
  auto model = Load(false);
  SessionOptions options;
  options.window = 256;
  auto session = New(*model, "", options);
  ASSERT_TRUE(session->Append(Ids(1500), nullptr).ok());  // beyond the trained 1024
  const uint64_t held = session->stats().kv_bytes;
  Generate(*session, 300);
  EXPECT_LE(session->stats().kv_bytes, held + 100000);
  for (const float x : LastLogits(*session)) ASSERT_TRUE(std::isfinite(x));
  // The same text in other pieces, and again after a rewind that needs what was dropped.
  const std::vector<int32_t> tokens = session->tokens();
  options.chunk = 33;
  auto other = New(*model, "", options);
  ASSERT_TRUE(other->Append(tokens, nullptr).ok());
  EXPECT_EQ(LastLogits(*other), LastLogits(*session));
  ASSERT_TRUE(other->Rewind(900).ok());
  ASSERT_TRUE(other->Append(std::span(tokens).subspan(900), nullptr).ok());
  EXPECT_EQ(LastLogits(*other), LastLogits(*session));
  // Inside the window it is the plain thing.
  auto plain = New(*model);
  auto windowed = New(*model, "", options);
  ASSERT_TRUE(plain->Append(Ids(380), nullptr).ok());
  ASSERT_TRUE(windowed->Append(Ids(380), nullptr).ok());
  EXPECT_EQ(LastLogits(*plain), LastLogits(*windowed));
}

TEST_F(Durable, SinksAndWindowsOfEverySizeAgreeWithAFreshSession) {
  auto model = Load(false);
  for (const int sinks : {0, 1, 127, 128}) {
    for (const int64_t window : {1, 128, 129}) {
      SessionOptions options;
      options.sinks = sinks;
      options.window = window;
      auto session = New(*model, "", options);
      ASSERT_TRUE(session->Append(Ids(700), nullptr).ok());
      options.chunk = 50;
      auto fresh = New(*model, "", options);
      ASSERT_TRUE(fresh->Append(Ids(700), nullptr).ok());
      EXPECT_EQ(LastLogits(*session), LastLogits(*fresh)) << sinks << " sinks, window " << window;
    }
  }
}

TEST_F(Durable, CallsFromInsideAProgressCallbackAreRefusedAndNothingHangs) {
  auto model = Load(false);
  SessionOptions options;
  options.chunk = 32;
  auto session = New(*model, "", options);
  auto other = New(*model);
  int calls = 0;
  const Status status = session->Append(Ids(200), [&](double) {
    ++calls;
    EXPECT_EQ(session->Append(Ids(1), nullptr).code(), StatusCode::kBusy);
    EXPECT_EQ(session->size(), 200);
    (void)model->stats();
    other.reset();
    return true;
  });
  EXPECT_TRUE(status.ok()) << status.message();
  EXPECT_GT(calls, 3);
}

TEST_F(Durable, WithoutAWindowAFullContextIsAnError) {
  auto model = Load(false);
  auto session = New(*model);
  EXPECT_EQ(session->Append(Ids(1025), nullptr).code(), StatusCode::kFull);
}

}  // namespace
}  // namespace kvart

// The journal gives back the ids that were written, whatever stops it where; and says what it could not keep.
#include "kvcache/journal.h"

#include <gtest/gtest.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>

#include "base/fake_fs.h"
#include "base/hash.h"

namespace kvart {
namespace {

constexpr const char* kPath = "/kv/sessions/talk.session";

JournalOptions Options(FileSystem* files) {
  JournalOptions o;
  o.store.fingerprint.fill(7);
  o.store.k_format = "int4";
  o.store.v_format = "int8";
  o.files = files;
  o.sync_ms = 0;
  return o;
}

std::unique_ptr<Journal> Open(FileSystem* files, Replay* replay, const std::string& directory = "/kv/sessions") {
  auto journal = Journal::Open(directory, "talk", Options(files), replay);
  EXPECT_TRUE(journal.ok()) << journal.status().message();
  return journal.ok() ? std::move(journal).value() : nullptr;
}

std::vector<int32_t> Ids(int32_t first, int n) {
  std::vector<int32_t> ids;
  for (int i = 0; i < n; ++i) ids.push_back(first + i);
  return ids;
}

OpenPage PageAt(uint64_t first, uint64_t tokens, size_t bytes) {
  OpenPage page{first, tokens, std::vector<uint8_t>(bytes)};
  for (size_t i = 0; i < bytes; ++i) page.bytes[i] = static_cast<uint8_t>(i * 13 + first);
  return page;
}

TEST(Journal, GivesBackWhatWasWritten) {
  FakeFiles files;
  Replay replay;
  auto journal = Open(&files, &replay);
  EXPECT_TRUE(replay.created);
  EXPECT_TRUE(replay.ids.empty());
  ASSERT_TRUE(journal->Append(Ids(0, 10)).ok());
  ASSERT_TRUE(journal->Append({}).ok());
  ASSERT_TRUE(journal->Rewind(7).ok());
  ASSERT_TRUE(journal->Append(Ids(100, 3)).ok());
  EXPECT_EQ(journal->tokens(), 10u);
  EXPECT_EQ(journal->Rewind(11).code(), StatusCode::kInvalidArgument);
  journal = nullptr;
  journal = Open(&files, &replay);
  EXPECT_FALSE(replay.created);
  EXPECT_EQ(replay.ids, (std::vector<int32_t>{0, 1, 2, 3, 4, 5, 6, 100, 101, 102}));
  EXPECT_EQ(replay.cut_bytes, 0u);
  EXPECT_FALSE(replay.open_page.has_value());
  EXPECT_EQ(replay.store, Options(nullptr).store);
  ASSERT_TRUE(journal->Rewind(0).ok());
  journal = nullptr;
  journal = Open(&files, &replay);
  EXPECT_TRUE(replay.ids.empty());
}

TEST(Journal, AnOpenPageIsTrueOnlyAtTheEnd) {
  FakeFiles files;
  Replay replay;
  auto journal = Open(&files, &replay);
  ASSERT_TRUE(journal->Append(Ids(0, 20)).ok());
  EXPECT_EQ(journal->WriteOpenPage(PageAt(16, 5, 64)).code(), StatusCode::kInvalidArgument);
  EXPECT_EQ(journal->WriteOpenPage(PageAt(UINT64_MAX, 21, 64)).code(), StatusCode::kInvalidArgument);
  ASSERT_TRUE(journal->WriteOpenPage(PageAt(16, 4, 63)).ok());
  journal = nullptr;
  for (int i = 0; i < 3; ++i) {  // to open is not to change
    journal = nullptr;
    journal = Open(&files, &replay);
    ASSERT_TRUE(replay.open_page.has_value());
    EXPECT_EQ(replay.open_page->first, 16u);
    EXPECT_EQ(replay.open_page->tokens, 4u);
    EXPECT_EQ(replay.open_page->bytes, PageAt(16, 4, 63).bytes);
  }
  ASSERT_TRUE(journal->Append(Ids(20, 1)).ok());
  journal = nullptr;
  EXPECT_LT(files.Contents(kPath).size(), 128u + 92 + 16 + 64) << "the open page is gone";
  journal = Open(&files, &replay);
  EXPECT_FALSE(replay.open_page.has_value());
  EXPECT_EQ(replay.ids, Ids(0, 21));
  ASSERT_TRUE(journal->WriteOpenPage(PageAt(16, 5, 10)).ok());
  ASSERT_TRUE(journal->Rewind(20).ok());
  journal = nullptr;
  journal = Open(&files, &replay);
  EXPECT_FALSE(replay.open_page.has_value());
  EXPECT_EQ(replay.ids, Ids(0, 20));
}

TEST(Journal, AnotherStoreKeepsTheIdsAndDropsTheOpenPage) {
  FakeFiles files;
  Replay replay;
  auto journal = Open(&files, &replay);
  ASSERT_TRUE(journal->Append(Ids(0, 20)).ok() && journal->WriteOpenPage(PageAt(16, 4, 64)).ok());
  journal = nullptr;
  JournalOptions other = Options(&files);
  other.store.k_format = "int8";
  other.store.fingerprint.fill(9);
  {
    auto moved = Journal::Open("/kv/sessions", "talk", other, &replay);
    ASSERT_TRUE(moved.ok());
    EXPECT_EQ(replay.store, Options(nullptr).store) << "it says where the pages were";
    EXPECT_EQ(replay.ids, Ids(0, 20));
    EXPECT_FALSE(replay.open_page.has_value());
    ASSERT_TRUE(moved.value()->WriteOpenPage(PageAt(16, 4, 32)).ok());
  }
  auto again = Journal::Open("/kv/sessions", "talk", other, &replay);
  EXPECT_EQ(replay.store, other.store);
  EXPECT_EQ(replay.open_page->bytes.size(), 32u);
}

TEST(Journal, IsForOneProcessAndNamesIt) {
  FakeFiles files;
  Replay replay;
  auto journal = Open(&files, &replay);
  const auto second = Journal::Open("/kv/sessions", "talk", Options(&files), &replay);
  EXPECT_EQ(second.status().code(), StatusCode::kBusy);
  EXPECT_NE(second.status().message().find("process " + std::to_string(getpid())), std::string::npos)
      << second.status().message();
  EXPECT_EQ(Journal::Remove(files, "/kv/sessions", "talk").code(), StatusCode::kBusy);
  const auto list = Journal::List(files, "/kv/sessions").value();
  ASSERT_EQ(list.size(), 1u);
  EXPECT_TRUE(list[0].busy);
  journal = nullptr;
  EXPECT_TRUE(Journal::Remove(files, "/kv/sessions", "talk").ok());
  EXPECT_EQ(Journal::Remove(files, "/kv/sessions", "talk").code(), StatusCode::kNotFound);
}

TEST(Journal, Names) {
  for (const char* good : {"a", "manual", "2024-01-02_x.y", "A.b-c_D"})
    EXPECT_TRUE(CheckSessionName(good).ok()) << good;
  for (const std::string& bad : {std::string(), std::string("."), std::string(".."), std::string("../x"),
                                 std::string("a/b"), std::string("a b"), std::string("-x"), std::string("_x"),
                                 std::string("ü"), std::string("a\0b", 3), std::string(101, 'a'), std::string("a\n")}) {
    EXPECT_EQ(CheckSessionName(bad).code(), StatusCode::kInvalidArgument) << bad;
    FakeFiles files;
    Replay replay;
    EXPECT_FALSE(Journal::Open("/kv", bad, Options(&files), &replay).ok());
    EXPECT_FALSE(Journal::Remove(files, "/kv", bad).ok());
    EXPECT_TRUE(files.Paths().empty());
  }
}

TEST(Journal, ListsSessionsAndWhatIsWrongWithThem) {
  FakeFiles files;
  EXPECT_TRUE(Journal::List(files, "/kv/sessions").value().empty());
  Replay replay;
  files.now = 5000;
  ASSERT_TRUE(Open(&files, &replay)->Append(Ids(0, 33)).ok());
  files.SetContents("/kv/sessions/broken.session", {'K', 'V'});
  files.SetContents("/kv/sessions/mine.session", {1, 2, 3});
  EXPECT_EQ(Journal::Remove(files, "/kv/sessions", "mine").code(), StatusCode::kInvalidArgument);
  EXPECT_TRUE(files.Exists("/kv/sessions/mine.session"));
  files.SetContents("/kv/sessions/other.txt", {1, 2, 3});
  files.SetContents("/kv/sessions/.session", {1, 2, 3});
  const auto list = Journal::List(files, "/kv/sessions").value();
  ASSERT_EQ(list.size(), 2u);
  EXPECT_EQ(list[0].name, "broken");
  EXPECT_FALSE(list[0].problem.ok());
  EXPECT_EQ(list[1].name, "talk");
  EXPECT_TRUE(list[1].problem.ok()) << list[1].problem.message();
  EXPECT_EQ(list[1].tokens, 33u);
  EXPECT_EQ(list[1].modified, 5000);
  EXPECT_FALSE(list[1].busy);
  EXPECT_EQ(list[1].store.v_format, "int8");
}

TEST(Journal, RefusesOtherFiles) {
  FakeFiles files;
  Replay replay;
  ASSERT_TRUE(Open(&files, &replay)->Append(Ids(0, 3)).ok());
  const std::vector<uint8_t> good = files.Contents(kPath);
  const auto refusal = [&](size_t at, uint8_t value) {
    std::vector<uint8_t> bytes = good;
    bytes[at] = value;
    files.SetContents(kPath, bytes);
    return Journal::Open("/kv/sessions", "talk", Options(&files), &replay).status().message();
  };
  EXPECT_NE(refusal(0, 'X').find("magic"), std::string::npos);
  EXPECT_NE(refusal(8, 2).find("format version 2; wanted version 1"), std::string::npos);
  EXPECT_NE(refusal(15, 4).find("byte order"), std::string::npos);
  EXPECT_NE(refusal(20, 0).find("checksum"), std::string::npos);
  files.SetContents(kPath, {'n', 'o', 't', ' ', 'm', 'i', 'n', 'e'});
  EXPECT_FALSE(Journal::Open("/kv/sessions", "talk", Options(&files), &replay).ok());
  EXPECT_EQ(files.Contents(kPath).size(), 8u);
}

// All of the file but the number of the process that opened it last.
std::vector<uint8_t> Kept(FakeFiles& files) {
  std::vector<uint8_t> bytes = files.Contents(kPath);
  std::fill_n(bytes.begin() + 116, 8, uint8_t{0});
  return bytes;
}

TEST(Journal, ToOpenIsNotToChange) {
  FakeFiles files;
  Replay replay;
  auto journal = Open(&files, &replay);
  ASSERT_TRUE(journal->Append(Ids(0, 20)).ok() && journal->WriteOpenPage(PageAt(16, 4, 64)).ok());
  journal = nullptr;
  std::vector<uint8_t> torn = files.Contents(kPath);
  torn.insert(torn.end(), {1, 0, 0, 0, 99, 0, 0, 0, 5, 5, 5, 5});
  files.SetContents(kPath, torn);
  const std::vector<uint8_t> before = Kept(files);
  JournalOptions other = Options(&files);
  other.store.k_format = "int8";
  auto moved = Journal::Open("/kv/sessions", "talk", other, &replay).value();
  EXPECT_EQ(replay.cut_bytes, 12u);
  EXPECT_FALSE(replay.damaged);
  ASSERT_TRUE(moved->Append({}).ok() && moved->Rewind(20).ok() && moved->Sync().ok());
  moved = nullptr;
  EXPECT_EQ(Kept(files), before);
  Open(&files, &replay);
  EXPECT_TRUE(replay.open_page.has_value()) << "still good for its own store";
  moved = Journal::Open("/kv/sessions", "talk", other, &replay).value();
  ASSERT_TRUE(moved->Rewind(10).ok());
  moved = nullptr;
  Open(&files, &replay);
  EXPECT_EQ(replay.store, other.store);
  EXPECT_EQ(replay.ids, Ids(0, 10));
  EXPECT_EQ(replay.cut_bytes, 0u);
  EXPECT_FALSE(files.Exists(std::string(kPath) + ".damaged")) << "a torn last record is nothing to keep";
}

TEST(Journal, WhatLiesBehindDamageIsSavedBesideIt) {
  FakeFiles files;
  Replay replay;
  const std::string saved = std::string(kPath) + ".damaged";
  for (int i = 0; i < 3; ++i) ASSERT_TRUE(Open(&files, &replay)->Append(Ids(i * 10, 10)).ok());
  files.SetContents(saved, std::vector<uint8_t>(1000, 9));
  const size_t at = 128 + 52;  // the second record
  files.Flip(kPath, at + 9, 1);
  const std::vector<uint8_t> before = files.Contents(kPath);
  const auto list = Journal::List(files, "/kv/sessions").value();
  ASSERT_EQ(list.size(), 1u);
  EXPECT_EQ(list[0].cut_bytes, 104u);
  EXPECT_EQ(list[0].tokens, 10u);
  auto journal = Open(&files, &replay);
  EXPECT_EQ(replay.ids, Ids(0, 10));
  EXPECT_TRUE(replay.damaged);
  EXPECT_EQ(files.Contents(saved).size(), 1000u);
  ASSERT_TRUE(journal->Append(Ids(50, 1)).ok());
  EXPECT_EQ(files.Contents(saved), std::vector<uint8_t>(before.begin() + at, before.end()));
  journal = nullptr;
  Open(&files, &replay);
  EXPECT_EQ(replay.cut_bytes, 0u);
  EXPECT_EQ(replay.ids.size(), 11u);
  EXPECT_TRUE(Journal::Remove(files, "/kv/sessions", "talk").ok());
  EXPECT_TRUE(files.Paths().empty());
}

TEST(Journal, ARecordOfANewerKindIsRefused) {
  FakeFiles files;
  Replay replay;
  ASSERT_TRUE(Open(&files, &replay)->Append(Ids(0, 3)).ok());
  std::vector<uint8_t> bytes = files.Contents(kPath), record{77, 0, 0, 0, 0, 0, 0, 0};
  const uint32_t crc = Crc32c(record.data(), record.size());
  for (int i = 0; i < 4; ++i) record.push_back(static_cast<uint8_t>(crc >> (8 * i)));
  bytes.insert(bytes.end(), record.begin(), record.end());
  files.SetContents(kPath, bytes);
  const Status status = Journal::Open("/kv/sessions", "talk", Options(&files), &replay).status();
  EXPECT_EQ(status.code(), StatusCode::kUnsupported);
  EXPECT_NE(status.message().find("kind 77"), std::string::npos) << status.message();
  EXPECT_EQ(files.Contents(kPath), bytes);
  EXPECT_EQ(Journal::List(files, "/kv/sessions").value()[0].problem.code(), StatusCode::kUnsupported);
}

// ---- Faults. The states that a session goes through, one an operation of the journal; each is a list of ids.
std::vector<std::vector<int32_t>> States() {
  std::vector<std::vector<int32_t>> states{{}};
  const auto append = [&](std::vector<int32_t> more) {
    std::vector<int32_t> next = states.back();
    next.insert(next.end(), more.begin(), more.end());
    states.push_back(next);
  };
  append(Ids(0, 7));
  append(Ids(7, 1));
  append(Ids(8, 1));
  states.push_back(Ids(0, 5));
  append(Ids(50, 1));
  append(Ids(51, 1));
  append(Ids(52, 1));
  states.push_back(Ids(0, 3));
  append(Ids(90, 40));
  return states;
}

struct Progress {
  size_t done = 0, synced = 0;  // numbers of states
};

// Goes through all the states from `from` on; reopens after each third with a clean close that keeps an open page.
Progress Work(FakeFiles& files, Progress progress) {
  const auto states = States();
  const auto alive = [&] { return files.stop_at < 0 || files.operations <= files.stop_at; };
  std::unique_ptr<Journal> journal;
  for (size_t i = progress.done + 1; i < states.size(); ++i) {
    Replay replay;
    if (journal == nullptr) {
      auto opened = Journal::Open("/kv/sessions", "talk", Options(&files), &replay);
      if (!opened.ok()) return progress;
      journal = std::move(opened).value();
      EXPECT_EQ(replay.ids, states[i - 1]);
      if (replay.ids != states[i - 1]) return progress;
    }
    size_t same = 0;
    while (same < states[i].size() && same < states[i - 1].size() && states[i][same] == states[i - 1][same]) ++same;
    const Status status =
        same < states[i - 1].size() ? journal->Rewind(same) : journal->Append(std::span(states[i]).subspan(same));
    if (!status.ok() || !alive()) return progress;
    progress.done = i;
    if (i % 3 == 1 && journal->Sync().ok() && alive()) progress.synced = i;
    if (i % 3 == 0) {
      const uint64_t n = states[i].size();
      const bool kept = journal->WriteOpenPage(PageAt(n - 2, 2, 24)).ok() && journal->Sync().ok() && alive();
      if (kept) progress.synced = i;
      journal = nullptr;
      if (!kept) return progress;
    }
  }
  return progress;
}

// What is there is a state that was gone through, not before `least` and not behind the one that was tried last; then
// it goes on.
void CheckJournal(FakeFiles& files, const Progress& done, size_t least, const std::string& what) {
  SCOPED_TRACE(what);
  const auto states = States();
  Replay replay;
  {
    const auto journal = Open(&files, &replay);
    if (journal == nullptr) return;
  }
  size_t found = states.size();
  for (size_t i = 0; i <= std::min(done.done + 1, states.size() - 1); ++i) {
    if (states[i] == replay.ids && (i >= least || found == states.size())) found = i;
  }
  ASSERT_LT(found, states.size()) << "ids that the session never had";
  EXPECT_GE(found, least) << "what was kept is lost";
  if (replay.open_page.has_value()) {
    const uint64_t n = replay.ids.size();
    EXPECT_EQ(replay.open_page->first, n - 2);
    EXPECT_EQ(replay.open_page->bytes, PageAt(n - 2, 2, 24).bytes);
  }
  Progress again{found, 0};
  EXPECT_EQ(Work(files, again).done, states.size() - 1);
  Open(&files, &replay);
  EXPECT_EQ(replay.ids, states.back());
}

TEST(JournalFaults, KilledAtEveryOperation) {
  FakeFiles whole;
  ASSERT_EQ(Work(whole, {}).done, States().size() - 1);
  ASSERT_GT(whole.operations, 20);
  for (int64_t stop = 0; stop < whole.operations; ++stop) {
    for (unsigned seed = 0; seed < 5; ++seed) {
      FakeFiles files;
      files.random.seed(static_cast<unsigned>(stop) * 10 + seed);
      files.stop_at = stop;
      const Progress done = Work(files, {});
      files.Reboot();
      CheckJournal(files, done, done.done, "killed at " + std::to_string(stop));
      if (testing::Test::HasFailure()) return;
    }
  }
}

TEST(JournalFaults, PowerCutAtEveryOperation) {
  FakeFiles whole;
  Work(whole, {});
  for (int64_t stop = 0; stop <= whole.operations; ++stop) {
    for (unsigned seed = 0; seed < 40; ++seed) {
      FakeFiles files;
      files.random.seed(static_cast<unsigned>(stop) * 100 + seed);
      files.stop_at = stop;
      const Progress done = Work(files, {});
      files.PowerCut();
      CheckJournal(files, done, done.synced, "power cut at " + std::to_string(stop) + " seed " + std::to_string(seed));
      if (testing::Test::HasFailure()) return;
    }
  }
}

// A record of ids exactly as long as the open page that it takes the place of: were the old one to come back, what
// follows would be read without what was between.
TEST(JournalFaults, AnOpenPageDoesNotComeBackWithNewIdsBehindIt) {
  for (unsigned seed = 0; seed < 300; ++seed) {
    FakeFiles files;
    files.random.seed(seed);
    Replay replay;
    auto journal = Open(&files, &replay);
    ASSERT_TRUE(journal->Append(Ids(0, 20)).ok() && journal->WriteOpenPage(PageAt(18, 2, 24)).ok());
    ASSERT_TRUE(journal->Sync().ok() && journal->Append(Ids(20, 10)).ok() && journal->Append(Ids(30, 1)).ok());
    files.PowerCut();
    journal = nullptr;
    Open(&files, &replay);
    EXPECT_GE(replay.ids.size(), 20u);
    EXPECT_EQ(replay.ids, Ids(0, static_cast<int>(replay.ids.size()))) << "seed " << seed;
  }
}

// A power cut may keep a record behind one that it lost; that one must not come back behind a new one, at the next
// power cut.
TEST(JournalFaults, WhatWasCutOffDoesNotComeBack) {
  int gaps = 0;
  for (unsigned seed = 0; seed < 500; ++seed) {
    FakeFiles files;
    files.random.seed(seed);
    Replay replay;
    auto journal = Open(&files, &replay);
    for (int id = 0; id < 3; ++id) ASSERT_TRUE(journal->Append(Ids(id, 1)).ok());
    files.PowerCut();
    journal = Open(&files, &replay);
    const int n = static_cast<int>(replay.ids.size());
    ASSERT_EQ(replay.ids, Ids(0, n));
    gaps += replay.cut_bytes >= 16;
    ASSERT_TRUE(journal->Append(Ids(100, 1)).ok());
    files.PowerCut();
    journal = Open(&files, &replay);
    std::vector<int32_t> with = Ids(0, n);
    with.push_back(100);
    EXPECT_TRUE(replay.ids == Ids(0, n) || replay.ids == with) << "seed " << seed;
  }
  EXPECT_GT(gaps, 10);
}

TEST(JournalFaults, AFullDiskFailsTheOneCallAndLosesNothing) {
  FakeFiles whole;
  Work(whole, {});
  for (int64_t fail = 0; fail < whole.operations; ++fail) {
    FakeFiles files;
    files.random.seed(static_cast<unsigned>(fail));
    files.fail_at = fail;
    Replay replay;
    auto opened = Journal::Open("/kv/sessions", "talk", Options(&files), &replay);
    if (!opened.ok()) {
      EXPECT_EQ(opened.status().code(), StatusCode::kNoSpace);
      opened = Journal::Open("/kv/sessions", "talk", Options(&files), &replay);
    }
    ASSERT_TRUE(opened.ok()) << fail << opened.status().message();
    std::vector<int32_t> ids;
    for (int i = 0; i < 30; ++i) {
      const Status status =
          i % 7 == 6 ? opened.value()->Rewind(ids.size() - 2) : opened.value()->Append(Ids(i * 10, 1 + i % 3));
      if (!status.ok()) {
        EXPECT_EQ(status.code(), StatusCode::kNoSpace);
        continue;
      }
      if (i % 7 == 6)
        ids.resize(ids.size() - 2);
      else
        for (const int32_t id : Ids(i * 10, 1 + i % 3)) ids.push_back(id);
      EXPECT_EQ(opened.value()->tokens(), ids.size());
    }
    opened = Status(StatusCode::kIo, "closed");
    Open(&files, &replay);
    EXPECT_EQ(replay.ids, ids) << fail;
    EXPECT_EQ(replay.cut_bytes, 0u);
  }
}

TEST(JournalFaults, CutOffAndFlippedAnywhere) {
  FakeFiles files;
  Replay replay;
  {
    const auto journal = Open(&files, &replay);
    ASSERT_TRUE(journal->Append(Ids(0, 5)).ok() && journal->Append(Ids(5, 2)).ok() && journal->Rewind(6).ok());
    ASSERT_TRUE(journal->WriteOpenPage(PageAt(4, 2, 30)).ok());
  }
  const std::vector<uint8_t> good = files.Contents(kPath);
  const std::vector<std::vector<int32_t>> states = {{}, Ids(0, 5), Ids(0, 7), Ids(0, 6)};
  const auto is_state = [&](const std::vector<int32_t>& ids) {
    return std::find(states.begin(), states.end(), ids) != states.end();
  };
  for (size_t size = 0; size <= good.size(); ++size) {
    files.SetContents(kPath, {good.begin(), good.begin() + static_cast<ptrdiff_t>(size)});
    const auto journal = Journal::Open("/kv/sessions", "talk", Options(&files), &replay);
    if (size >= 8 && size < 128) {
      EXPECT_EQ(journal.status().code(), StatusCode::kCorrupt);
      continue;
    }
    ASSERT_TRUE(journal.ok()) << size;
    EXPECT_TRUE(is_state(replay.ids));
    EXPECT_EQ(replay.open_page.has_value(), size == good.size());
    EXPECT_EQ(files.Contents(kPath).size(), std::max<size_t>(size, 128)) << "nothing is cut before a write";
    EXPECT_LE(replay.cut_bytes, size - std::min<size_t>(size, 128));
  }
  for (size_t bit = 0; bit < good.size() * 8; ++bit) {
    std::vector<uint8_t> bad = good;
    bad[bit / 8] ^= static_cast<uint8_t>(1 << bit % 8);
    files.SetContents(kPath, bad);
    const auto journal = Journal::Open("/kv/sessions", "talk", Options(&files), &replay);
    EXPECT_EQ(journal.ok(), bit / 8 >= 116) << bit / 8;
    if (!journal.ok()) continue;
    EXPECT_TRUE(is_state(replay.ids));
    EXPECT_EQ(replay.cut_bytes > 0, bit / 8 >= 128);
    EXPECT_EQ(replay.open_page.has_value(), bit / 8 < 128);
  }
}

TEST(JournalFaults, HostileRecords) {
  FakeFiles files;
  Replay replay;
  ASSERT_TRUE(Open(&files, &replay)->Append(Ids(0, 3)).ok());
  const std::vector<uint8_t> good = files.Contents(kPath);
  for (const uint32_t n : {0xffffffffu, 0xfffffffdu, 0x7fffffffu, 1000u, 13u}) {
    std::vector<uint8_t> bad = good;
    for (const uint32_t word : {1u, n, 0u, 0u})
      bad.insert(bad.end(), {uint8_t(word), uint8_t(word >> 8), uint8_t(word >> 16), uint8_t(word >> 24)});
    files.SetContents(kPath, bad);
    Open(&files, &replay);
    EXPECT_EQ(replay.ids, Ids(0, 3));
    EXPECT_EQ(replay.cut_bytes, 16u);
  }
}

TEST(JournalFaults, KilledAgainAndAgainOnARealFile) {
  const std::string directory = testing::TempDir() + "kvart_journal_" + std::to_string(getpid());
  std::filesystem::remove_all(directory);
  int32_t next = 0;
  for (int round = 0; round < 30; ++round) {
    int says[2];
    ASSERT_EQ(pipe(says), 0);
    const pid_t child = fork();
    if (child == 0) {
      Replay replay;
      auto journal = Journal::Open(directory, "talk", Options(nullptr), &replay);
      if (!journal.ok()) _exit(1);
      for (int32_t id = static_cast<int32_t>(replay.ids.size());; ++id) {
        if (!journal.value()->Append({&id, 1}).ok()) _exit(2);
        (void)!write(says[1], &id, sizeof id);
      }
    }
    close(says[1]);
    int32_t last = -1;
    for (int i = 0; i < 1 + round * 3 && read(says[0], &last, sizeof last) == sizeof last; ++i) {
    }
    kill(child, SIGKILL);
    int status = 0;
    waitpid(child, &status, 0);
    EXPECT_TRUE(WIFSIGNALED(status));
    while (read(says[0], &last, sizeof last) == sizeof last) {
    }
    close(says[0]);
    Replay replay;
    Open(nullptr, &replay, directory);
    const int32_t n = static_cast<int32_t>(replay.ids.size());
    EXPECT_EQ(replay.ids, Ids(0, n));
    EXPECT_GT(n, last) << "an id that was written is lost";
    EXPECT_GT(n, next);
    next = n;
  }
  std::filesystem::remove_all(directory);
}

}  // namespace
}  // namespace kvart

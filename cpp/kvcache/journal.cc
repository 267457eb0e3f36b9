#include "kvcache/journal.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "base/hash.h"
#include "kvcache/magic.h"

namespace kvart {
namespace {

constexpr uint8_t kMagic[8] = {'K', 'V', 'A', 'R', 'T', 'S', 'E', 1};
constexpr uint32_t kVersion = 1, kByteOrder = 0x01020304;
constexpr size_t kHeaderBytes = 128, kHeaderChecked = 112, kHolderOffset = 116, kFormatBytes = 32, kIdentityBytes = 96;
constexpr uint32_t kAppend = 1, kRewind = 2, kOpenPage = 3, kStore = 4;
constexpr const char *kSuffix = ".session", *kDamagedSuffix = ".damaged";
constexpr size_t kCopyBytes = size_t{1} << 20;

template <class T>
T Get(const uint8_t* from) {
  T value;
  std::memcpy(&value, from, sizeof value);
  return value;
}

size_t Padded(size_t n) {
  return (n + 3) / 4 * 4;
}

// Fingerprint and both formats, as they stand in the header and in a store record.
void PutIdentity(uint8_t* to, const StoreIdentity& store) {
  std::memset(to, 0, kIdentityBytes);
  std::copy(store.fingerprint.begin(), store.fingerprint.end(), to);
  std::copy(store.k_format.begin(), store.k_format.end(), to + 32);
  std::copy(store.v_format.begin(), store.v_format.end(), to + 32 + kFormatBytes);
}
StoreIdentity GetIdentity(const uint8_t* from) {
  StoreIdentity store;
  std::copy_n(from, 32, store.fingerprint.begin());
  for (const auto& [format, at] :
       {std::pair(&store.k_format, from + 32), std::pair(&store.v_format, from + 32 + kFormatBytes)}) {
    for (size_t i = 0; i < kFormatBytes && at[i] != 0; ++i) *format += static_cast<char>(at[i]);
  }
  return store;
}

std::vector<uint8_t> EncodeHeader(const StoreIdentity& store) {
  std::vector<uint8_t> bytes(kHeaderBytes);
  std::memcpy(bytes.data(), kMagic, sizeof kMagic);
  std::memcpy(bytes.data() + 8, &kVersion, 4);
  std::memcpy(bytes.data() + 12, &kByteOrder, 4);
  PutIdentity(bytes.data() + 16, store);
  const uint32_t crc = Crc32c(bytes.data(), kHeaderChecked);
  std::memcpy(bytes.data() + kHeaderChecked, &crc, 4);
  return bytes;
}

Status Refuse(StatusCode code, const std::string& path, const std::string& found, const std::string& wanted) {
  return Status(code, path + " has " + found + "; wanted " + wanted, path);
}

Result<StoreIdentity> DecodeHeader(const std::string& path, const uint8_t* bytes) {
  if (std::memcmp(bytes, kMagic, sizeof kMagic) != 0)
    return Refuse(StatusCode::kCorrupt, path, "another magic", "KVARTSE\\x01, a session's");
  if (const uint32_t order = Get<uint32_t>(bytes + 12); order != kByteOrder) {
    return Refuse(StatusCode::kUnsupported, path, "byte order mark " + std::to_string(order),
                  std::to_string(kByteOrder));
  }
  if (const uint32_t version = Get<uint32_t>(bytes + 8); version != kVersion) {
    return Refuse(StatusCode::kUnsupported, path, "format version " + std::to_string(version),
                  "version " + std::to_string(kVersion));
  }
  if (const uint32_t stored = Get<uint32_t>(bytes + kHeaderChecked), computed = Crc32c(bytes, kHeaderChecked);
      stored != computed) {
    return Refuse(StatusCode::kCorrupt, path, "header checksum " + std::to_string(stored), std::to_string(computed));
  }
  return GetIdentity(bytes + 16);
}

// Reads all whole records. *end: behind the last of them; *open_page_start: where it begins when it is an open page.
Status ReadRecords(const RandomFile& file, uint64_t size, bool want_open_page, Replay* replay, uint64_t* end,
                   std::optional<uint64_t>* open_page_start) {
  uint64_t at = kHeaderBytes;
  std::vector<uint8_t> record;
  while (size - at >= 12) {
    uint8_t head[8];
    KVART_RETURN_IF_ERROR(file.Read(at, head, sizeof head));
    const uint32_t kind = Get<uint32_t>(head), n = Get<uint32_t>(head + 4);
    if (n > size - at - 12 || Padded(n) > size - at - 12) break;
    replay->damaged = true;  // until it proves whole
    record.resize(8 + Padded(n) + 4);
    KVART_RETURN_IF_ERROR(file.Read(at, record.data(), record.size()));
    if (Get<uint32_t>(record.data() + record.size() - 4) != Crc32c(record.data(), record.size() - 4)) break;
    const uint8_t* payload = record.data() + 8;
    std::optional<OpenPage> open_page;
    if (kind == kAppend && n % 4 == 0) {
      const size_t before = replay->ids.size();
      replay->ids.resize(before + n / 4);
      std::memcpy(replay->ids.data() + before, payload, n);
    } else if (kind == kRewind && n == 8 && Get<uint64_t>(payload) <= replay->ids.size()) {
      replay->ids.resize(static_cast<size_t>(Get<uint64_t>(payload)));
    } else if (kind == kOpenPage && n >= 16) {
      open_page.emplace();
      open_page->first = Get<uint64_t>(payload);
      open_page->tokens = Get<uint64_t>(payload + 8);
      if (want_open_page) open_page->bytes.assign(payload + 16, payload + n);
    } else if (kind == kStore && n == kIdentityBytes) {
      replay->store = GetIdentity(payload);
    } else if (kind < kAppend || kind > kStore) {
      return Refuse(StatusCode::kUnsupported, file.path(),
                    "a record of kind " + std::to_string(kind) + " at byte " + std::to_string(at),
                    "kinds 1 to 4: it is a newer kvart's");
    } else {
      break;  // intact, and yet it makes no sense
    }
    replay->damaged = false;
    *open_page_start = open_page.has_value() ? std::optional(at) : std::nullopt;
    replay->open_page = std::move(open_page);
    at += record.size();
  }
  *end = at;
  replay->cut_bytes = size - at;
  if (const auto& page = replay->open_page;
      page.has_value() && (page->tokens > replay->ids.size() || page->first != replay->ids.size() - page->tokens)) {
    replay->open_page.reset();
  }
  return Status::Ok();
}

std::string PathOf(const std::string& directory, const std::string& name) {
  return directory + "/" + name + kSuffix;
}

Status BusyWith(const RandomFile& file, const std::string& name) {
  uint64_t holder = 0;
  const bool known = file.Read(kHolderOffset, &holder, sizeof holder).ok() && holder != 0;
  return Status(
      StatusCode::kBusy,
      "session '" + name + "' is open in " + (known ? "process " + std::to_string(holder) : "another process"),
      file.path());
}

Status WriteHeader(RandomFile& file, const StoreIdentity& store) {
  const std::vector<uint8_t> header = EncodeHeader(store);
  KVART_RETURN_IF_ERROR(file.Write(sizeof kMagic, header.data() + sizeof kMagic, header.size() - sizeof kMagic));
  KVART_RETURN_IF_ERROR(file.Sync());
  KVART_RETURN_IF_ERROR(file.Write(0, header.data(), sizeof kMagic));
  return file.Sync();
}

}  // namespace

Status CheckSessionName(const std::string& name) {
  const auto alphanumeric = [](char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9');
  };
  const bool good = !name.empty() && name.size() <= 100 && alphanumeric(name[0]) &&
                    std::all_of(name.begin(), name.end(),
                                [&](char c) { return alphanumeric(c) || c == '.' || c == '_' || c == '-'; });
  if (good) return Status::Ok();
  return Status(StatusCode::kInvalidArgument,
                "session name '" + name.substr(0, 120) +
                    "': wanted 1 to 100 letters, digits, '.', '_' or '-' that begin with a letter or digit");
}

Journal::Journal(FileSystem& files, std::shared_ptr<RandomFile> file, int sync_ms)
    : files_(files),
      file_(std::move(file)),
      process_(ProcessId()),
      background_([file = file_] { return file->Sync(); }, sync_ms) {}

Journal::~Journal() {
  if (process_ == ProcessId()) (void)background_.Flush();
}

Result<std::unique_ptr<Journal>> Journal::Open(const std::string& directory, const std::string& name,
                                               const JournalOptions& options, Replay* replay) {
  KVART_RETURN_IF_ERROR(CheckSessionName(name));
  for (const std::string& format : {options.store.k_format, options.store.v_format}) {
    if (format.size() >= kFormatBytes)
      return Status(StatusCode::kInvalidArgument, "K/V format '" + format.substr(0, 64) + "'");
  }
  FileSystem& files = options.files != nullptr ? *options.files : SystemFiles();
  KVART_RETURN_IF_ERROR(files.MakeDirectories(directory));
  const std::string path = PathOf(directory, name);
  std::shared_ptr<RandomFile> file;
  do {
    KVART_ASSIGN_OR_RETURN(file, files.Open(path, OpenMode::kCreate));
    const Status locked = file->TryLock(0, true);
    if (locked.code() == StatusCode::kBusy) return BusyWith(*file, name);
    KVART_RETURN_IF_ERROR(locked);
  } while (!file->IsAt(path));  // removed between open and lock

  *replay = Replay();
  KVART_ASSIGN_OR_RETURN(uint64_t size, file->Size());
  KVART_ASSIGN_OR_RETURN(const MagicState magic, ReadMagic(*file, kMagic, kHeaderBytes));
  replay->created = magic == MagicState::kUnfinished;
  if (replay->created) {
    KVART_RETURN_IF_ERROR(WriteHeader(*file, options.store));
    KVART_RETURN_IF_ERROR(files.SyncDirectory(directory));
    size = kHeaderBytes;
  }
  if (size < kHeaderBytes) {
    return Refuse(StatusCode::kCorrupt, path, std::to_string(size) + " bytes", "a session's header of 128");
  }
  uint8_t header[kHeaderBytes];
  KVART_RETURN_IF_ERROR(file->Read(0, header, sizeof header));
  KVART_ASSIGN_OR_RETURN(replay->store, DecodeHeader(path, header));
  auto journal = std::unique_ptr<Journal>(new Journal(files, file, options.sync_ms));
  KVART_RETURN_IF_ERROR(ReadRecords(*file, size, true, replay, &journal->end_, &journal->open_page_start_));
  journal->tokens_ = replay->ids.size();
  journal->cut_bytes_ = replay->cut_bytes;
  journal->damaged_ = replay->damaged;
  if (replay->store != options.store) {
    replay->open_page.reset();
    journal->new_store_ = options.store;
  }
  const uint64_t holder = static_cast<uint64_t>(ProcessId());
  (void)file->Write(kHolderOffset, &holder, sizeof holder);  // for another process's message: no reason to fail
  return journal;
}

Status Journal::CheckProcess() const {
  if (process_ == ProcessId()) return Status::Ok();
  return Status(StatusCode::kUnsupported, path() + " was opened before this process was forked", path());
}

Status Journal::WriteRecord(uint32_t kind, std::span<const uint8_t> payload) {
  KVART_RETURN_IF_ERROR(CheckProcess());
  if (payload.size() > UINT32_MAX - 16)
    return Errorf(StatusCode::kInvalidArgument, "session record of %zu bytes", payload.size());
  std::vector<uint8_t> record(8 + Padded(payload.size()) + 4);
  const uint32_t n = static_cast<uint32_t>(payload.size());
  std::memcpy(record.data(), &kind, 4);
  std::memcpy(record.data() + 4, &n, 4);
  std::copy(payload.begin(), payload.end(), record.begin() + 8);
  const uint32_t crc = Crc32c(record.data(), record.size() - 4);
  std::memcpy(record.data() + record.size() - 4, &crc, 4);
  if (Status status = file_->Write(end_, record.data(), record.size()); !status.ok()) {
    if (file_->Truncate(end_).ok()) (void)file_->Sync();  // where that fails too, the next record goes over it
    return status;
  }
  end_ += record.size();
  background_.Dirty();
  return Status::Ok();
}

// What Open left to be done before anything is written.
Status Journal::BeginWrite() {
  KVART_RETURN_IF_ERROR(CheckProcess());
  KVART_RETURN_IF_ERROR(CutTail());
  KVART_RETURN_IF_ERROR(DropOpenPage());
  if (!new_store_.has_value()) return Status::Ok();
  uint8_t identity[kIdentityBytes];
  PutIdentity(identity, *new_store_);
  KVART_RETURN_IF_ERROR(WriteRecord(kStore, identity));
  new_store_.reset();
  return Status::Ok();
}

// Away for good before anything goes there, or an old record might follow a new one; kept beside it where whole records
// may stand in it.
Status Journal::CutTail() {
  if (cut_bytes_ == 0) return Status::Ok();
  if (damaged_) {
    KVART_ASSIGN_OR_RETURN(const std::shared_ptr<RandomFile> copy,
                           files_.Open(path() + kDamagedSuffix, OpenMode::kReplace));
    std::vector<uint8_t> bytes(static_cast<size_t>(std::min<uint64_t>(kCopyBytes, cut_bytes_)));
    for (uint64_t done = 0; done < cut_bytes_;) {
      const size_t n = static_cast<size_t>(std::min<uint64_t>(bytes.size(), cut_bytes_ - done));
      KVART_RETURN_IF_ERROR(file_->Read(end_ + done, bytes.data(), n));
      KVART_RETURN_IF_ERROR(copy->Write(done, bytes.data(), n));
      done += n;
    }
    KVART_RETURN_IF_ERROR(copy->Sync());
    KVART_RETURN_IF_ERROR(files_.SyncDirectory(path().substr(0, path().rfind('/'))));
  }
  KVART_RETURN_IF_ERROR(file_->Truncate(end_));
  KVART_RETURN_IF_ERROR(file_->Sync());
  cut_bytes_ = 0;
  return Status::Ok();
}

Status Journal::DropOpenPage() {
  if (!open_page_start_.has_value()) return Status::Ok();
  KVART_RETURN_IF_ERROR(file_->Truncate(*open_page_start_));
  end_ = *open_page_start_;
  open_page_start_.reset();
  // Before something goes there: a power cut must not leave the old record with a new one behind it.
  return file_->Sync();
}

Status Journal::Append(std::span<const int32_t> ids) {
  if (ids.empty()) return Status::Ok();
  KVART_RETURN_IF_ERROR(BeginWrite());
  KVART_RETURN_IF_ERROR(WriteRecord(kAppend, {reinterpret_cast<const uint8_t*>(ids.data()), ids.size_bytes()}));
  tokens_ += ids.size();
  return Status::Ok();
}

Status Journal::Rewind(uint64_t tokens) {
  if (tokens > tokens_) {
    return Errorf(StatusCode::kInvalidArgument, "rewind to %llu tokens of %llu",
                  static_cast<unsigned long long>(tokens), static_cast<unsigned long long>(tokens_));
  }
  if (tokens == tokens_) return Status::Ok();
  KVART_RETURN_IF_ERROR(BeginWrite());
  KVART_RETURN_IF_ERROR(WriteRecord(kRewind, {reinterpret_cast<const uint8_t*>(&tokens), sizeof tokens}));
  tokens_ = tokens;
  return Status::Ok();
}

Status Journal::WriteOpenPage(const OpenPage& page) {
  if (page.tokens > tokens_ || page.first != tokens_ - page.tokens) {
    return Errorf(StatusCode::kInvalidArgument, "an open page of %llu tokens from %llu; the session has %llu",
                  static_cast<unsigned long long>(page.tokens), static_cast<unsigned long long>(page.first),
                  static_cast<unsigned long long>(tokens_));
  }
  KVART_RETURN_IF_ERROR(BeginWrite());
  std::vector<uint8_t> payload(16 + page.bytes.size());
  std::memcpy(payload.data(), &page.first, 8);
  std::memcpy(payload.data() + 8, &page.tokens, 8);
  std::copy(page.bytes.begin(), page.bytes.end(), payload.begin() + 16);
  const uint64_t start = end_;
  KVART_RETURN_IF_ERROR(WriteRecord(kOpenPage, payload));
  open_page_start_ = start;
  return Status::Ok();
}

Status Journal::Sync() {
  KVART_RETURN_IF_ERROR(CheckProcess());
  return background_.Flush();
}

Result<std::vector<SessionInfo>> Journal::List(FileSystem& files, const std::string& directory) {
  std::vector<SessionInfo> sessions;
  Result<std::vector<std::string>> names = files.List(directory);
  if (names.status().code() == StatusCode::kNotFound) return sessions;
  if (!names.ok()) return names.status();
  for (const std::string& file_name : *names) {
    const std::string name = file_name.substr(0, file_name.size() - std::min(file_name.size(), std::strlen(kSuffix)));
    if (name + kSuffix != file_name || !CheckSessionName(name).ok()) continue;
    SessionInfo info;
    info.name = name;
    const std::string path = PathOf(directory, name);
    if (const auto there = files.Info(path); there.ok()) info.bytes = there->bytes, info.modified = there->modified;
    MagicState magic = MagicState::kWhole;
    const auto read = [&]() -> Status {
      KVART_ASSIGN_OR_RETURN(const std::shared_ptr<RandomFile> file, files.Open(path, OpenMode::kRead));
      KVART_ASSIGN_OR_RETURN(magic, ReadMagic(*file, kMagic, kHeaderBytes));
      info.busy = file->IsLocked(0);
      uint8_t header[kHeaderBytes];
      KVART_RETURN_IF_ERROR(file->Read(0, header, sizeof header));
      Replay replay;
      KVART_ASSIGN_OR_RETURN(replay.store, DecodeHeader(path, header));
      KVART_ASSIGN_OR_RETURN(const uint64_t size, file->Size());
      uint64_t end = 0;
      std::optional<uint64_t> open_page_start;
      KVART_RETURN_IF_ERROR(ReadRecords(*file, size, false, &replay, &end, &open_page_start));
      info.tokens = replay.ids.size();
      info.cut_bytes = replay.cut_bytes;
      info.store = replay.store;
      return Status::Ok();
    };
    info.problem = read();
    if (magic == MagicState::kOther) continue;  // somebody else's
    sessions.push_back(std::move(info));
  }
  return sessions;
}

Status Journal::Remove(FileSystem& files, const std::string& directory, const std::string& name) {
  KVART_RETURN_IF_ERROR(CheckSessionName(name));
  const std::string path = PathOf(directory, name);
  Result<std::shared_ptr<RandomFile>> file = files.Open(path, OpenMode::kWrite);
  if (file.status().code() == StatusCode::kNotFound) {
    return Status(StatusCode::kNotFound, "there is no session '" + name + "' in " + directory, path);
  }
  if (!file.ok()) return file.status();
  const Status locked = (*file)->TryLock(0, true);
  if (locked.code() == StatusCode::kBusy) return BusyWith(**file, name);
  KVART_RETURN_IF_ERROR(locked);
  KVART_ASSIGN_OR_RETURN(const std::vector<std::string> regular, files.List(directory));  // links are not
  KVART_ASSIGN_OR_RETURN(const MagicState magic, ReadMagic(**file, kMagic, kHeaderBytes));
  if (magic == MagicState::kOther || !std::binary_search(regular.begin(), regular.end(), name + kSuffix)) {
    return Status(StatusCode::kInvalidArgument, path + " is not a session: it is left alone", path);
  }
  if (std::binary_search(regular.begin(), regular.end(), name + kSuffix + kDamagedSuffix)) {
    KVART_RETURN_IF_ERROR(files.Remove(path + kDamagedSuffix));
  }
  return files.Remove(path);
}

}  // namespace kvart

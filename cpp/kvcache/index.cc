#include "kvcache/index.h"
#include "kvcache/magic.h"

#include <algorithm>
#include <cstring>

namespace kvart {
namespace {

constexpr uint8_t kMagic[8] = {'K', 'V', 'A', 'R', 'T', 'I', 'X', 1};
constexpr uint64_t kHeaderBytes = 16, kEntryBytes = 16, kReplacedOffset = 12;
constexpr uint32_t kLeastLog2 = 8, kMostLog2 = 33;
constexpr uint64_t kMostProbes = 512;  // at half full and less, runs are a tenth of this

// The smallest table that n slots fill by less than half.
uint32_t Log2For(uint64_t n_slots) {
  uint32_t log2 = kLeastLog2;
  while (log2 < kMostLog2 && uint64_t{1} << log2 < 2 * n_slots) ++log2;
  return log2;
}

void PutEntry(uint8_t* to, const SlotIndex::Entry& entry) {
  std::memcpy(to, &entry.key, 8);
  std::memcpy(to + 8, &entry.slot, 4);
  std::memset(to + 12, 0, 4);
}

}  // namespace

Result<bool> SlotIndex::IsIndexFile(const RandomFile& file) {
  KVART_ASSIGN_OR_RETURN(const MagicState state, ReadMagic(file, kMagic, 16));
  return state != MagicState::kOther;
}

uint64_t SlotIndex::KeyOf(const PageName& name) {
  uint64_t key;
  std::memcpy(&key, name.data(), sizeof key);
  return key == 0 ? 1 : key;
}

Status SlotIndex::Open(bool writable) {
  file_ = nullptr;
  writable_ = writable;
  KVART_ASSIGN_OR_RETURN(std::shared_ptr<RandomFile> file,
                         files_.Open(path_, writable ? OpenMode::kWrite : OpenMode::kRead));
  uint8_t header[kHeaderBytes];
  KVART_RETURN_IF_ERROR(file->Read(0, header, sizeof header));
  uint32_t log2, replaced;
  std::memcpy(&log2, header + 8, 4);
  std::memcpy(&replaced, header + kReplacedOffset, 4);
  KVART_ASSIGN_OR_RETURN(const uint64_t size, file->Size());
  if (std::memcmp(header, kMagic, sizeof kMagic) != 0 || log2 < kLeastLog2 || log2 > kMostLog2 || replaced != 0 ||
      size != kHeaderBytes + (kEntryBytes << log2)) {
    return Status(StatusCode::kCorrupt, path_ + " is not an index of a page store", path_);
  }
  log2_ = log2;
  file_ = std::move(file);
  return Status::Ok();
}

Status SlotIndex::Rebuild(const std::vector<Entry>& entries, uint64_t n_slots) {
  const uint32_t log2 = Log2For(std::max<uint64_t>(n_slots, entries.size()));
  const uint64_t mask = (uint64_t{1} << log2) - 1;
  std::vector<uint8_t> bytes(kHeaderBytes + (kEntryBytes << log2));
  std::memcpy(bytes.data(), kMagic, sizeof kMagic);
  std::memcpy(bytes.data() + 8, &log2, 4);
  for (const Entry& entry : entries) {
    uint64_t at = entry.key & mask;
    for (uint64_t key = 1;; at = (at + 1) & mask) {
      std::memcpy(&key, bytes.data() + kHeaderBytes + at * kEntryBytes, 8);
      if (key == 0) break;
    }
    PutEntry(bytes.data() + kHeaderBytes + at * kEntryBytes, entry);
  }
  const std::string beside = path_ + ".new";
  KVART_ASSIGN_OR_RETURN(std::shared_ptr<RandomFile> file, files_.Open(beside, OpenMode::kReplace));
  Status status = file->Write(0, bytes.data(), bytes.size());
  if (status.ok()) status = file->Sync();  // or a power cut might leave the name on an empty file
  if (status.ok()) status = files_.Rename(beside, path_);
  if (!status.ok()) {
    (void)files_.Remove(beside);
    return status;
  }
  if (file_ != nullptr) {  // readers that have the old one open learn that there is a new one
    const uint32_t replaced = 1;
    (void)file_->Write(kReplacedOffset, &replaced, sizeof replaced);
  }
  file_ = std::move(file);
  log2_ = log2;
  writable_ = true;
  return Status::Ok();
}

Status SlotIndex::Reserve(uint64_t n_slots) {
  if (file_ != nullptr && Log2For(n_slots) <= log2_) return Status::Ok();
  std::vector<Entry> all;
  if (file_ != nullptr) {
    std::vector<uint8_t> bytes(entries() * kEntryBytes);
    KVART_RETURN_IF_ERROR(file_->Read(kHeaderBytes, bytes.data(), bytes.size()));
    for (size_t at = 0; at < bytes.size(); at += kEntryBytes) {
      Entry entry;
      std::memcpy(&entry.key, bytes.data() + at, 8);
      std::memcpy(&entry.slot, bytes.data() + at + 8, 4);
      if (entry.key != 0) all.push_back(entry);
    }
  }
  return Rebuild(all, n_slots);
}

Status SlotIndex::ReadEntry(uint64_t at, Entry* entry) const {
  uint8_t bytes[kEntryBytes];
  KVART_RETURN_IF_ERROR(file_->Read(kHeaderBytes + at * kEntryBytes, bytes, sizeof bytes));
  std::memcpy(&entry->key, bytes, 8);
  std::memcpy(&entry->slot, bytes + 8, 4);
  return Status::Ok();
}

Status SlotIndex::WriteEntry(uint64_t at, const Entry& entry) {
  uint8_t bytes[kEntryBytes];
  PutEntry(bytes, entry);
  return file_->Write(kHeaderBytes + at * kEntryBytes, bytes, sizeof bytes);
}

bool SlotIndex::Probe(uint64_t key, const std::function<bool(uint32_t slot)>& is_it) {
  if (file_ == nullptr) return false;
  const uint64_t mask = entries() - 1;
  Entry entry;
  for (uint64_t i = 0; i < kMostProbes && ReadEntry((key + i) & mask, &entry).ok() && entry.key != 0; ++i) {
    if (entry.key == key && is_it(entry.slot)) return true;
  }
  return false;
}

bool SlotIndex::Replaced() const {
  uint32_t replaced = 1;
  return file_ == nullptr || !file_->Read(kReplacedOffset, &replaced, sizeof replaced).ok() || replaced != 0;
}

bool SlotIndex::Find(const PageName& name, const std::function<bool(uint32_t slot)>& is_it) {
  const uint64_t key = KeyOf(name);
  if (Probe(key, is_it)) return true;
  return !writable_ && Replaced() && Open(false).ok() && Probe(key, is_it);
}

Status SlotIndex::Insert(const PageName& name, uint32_t slot) {
  if (file_ == nullptr) return Status(StatusCode::kNotFound, path_ + " is not open", path_);
  const uint64_t key = KeyOf(name), mask = entries() - 1;
  for (uint64_t i = 0; i < kMostProbes; ++i) {
    Entry entry;
    KVART_RETURN_IF_ERROR(ReadEntry((key + i) & mask, &entry));
    if (entry.key == key && entry.slot == slot) return Status::Ok();
    if (entry.key == 0) return WriteEntry((key + i) & mask, {key, slot});
  }
  return Status(StatusCode::kCorrupt, path_ + " is too full", path_);
}

Status SlotIndex::Remove(const PageName& name, uint32_t slot) {
  if (file_ == nullptr) return Status::Ok();
  const uint64_t key = KeyOf(name), mask = entries() - 1;
  uint64_t hole = key & mask;
  Entry entry;
  for (uint64_t i = 0;; ++i, hole = (hole + 1) & mask) {
    if (i == kMostProbes) return Status::Ok();
    KVART_RETURN_IF_ERROR(ReadEntry(hole, &entry));
    if (entry.key == 0) return Status::Ok();
    if (entry.key == key && entry.slot == slot) break;
  }
  // Entries behind the hole move up, those that the hole would cut off from where their search begins. A copy first, so
  // that whoever stops here leaves one too many rather than one too few.
  for (uint64_t i = 1, at = hole; i < kMostProbes; ++i) {
    at = (at + 1) & mask;
    KVART_RETURN_IF_ERROR(ReadEntry(at, &entry));
    if (entry.key == 0) break;
    if (((at - entry.key) & mask) < ((at - hole) & mask)) continue;
    KVART_RETURN_IF_ERROR(WriteEntry(hole, entry));
    hole = at;
  }
  return WriteEntry(hole, {0, 0});
}

}  // namespace kvart

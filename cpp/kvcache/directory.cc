#include "kvcache/directory.h"

#include <algorithm>

#include "kvcache/index.h"
#include "kvcache/page_file.h"

namespace kvart {
namespace {

constexpr std::string_view kSuffix = ".pages";
constexpr size_t kNameBytes = 16, kMostOffsets = 100;

bool IsStoreName(std::string_view name) {
  return name.size() == kNameBytes + kSuffix.size() && name.ends_with(kSuffix) &&
         name.find_first_not_of("0123456789abcdef") == kNameBytes;
}

std::string IndexOf(const std::string& file) {
  return file.substr(0, file.size() - kSuffix.size()) + ".index";
}

Status CheckStoreName(const std::string& file) {
  if (IsStoreName(file)) return Status::Ok();
  return Status(StatusCode::kInvalidArgument,
                "'" + file.substr(0, 120) + "' is not a page store's name: wanted 16 hex digits and .pages");
}

Status NotOurs(const std::string& path) {
  return Status(StatusCode::kInvalidArgument, path + " is not a page store: it is left alone", path);
}

}  // namespace

Result<std::vector<StoreInfo>> KvDirectory::List() {
  std::vector<StoreInfo> stores;
  const Result<std::vector<std::string>> names = files_.List(directory_);
  if (names.status().code() == StatusCode::kNotFound) return stores;
  if (!names.ok()) return names.status();
  for (const std::string& name : *names) {
    if (!IsStoreName(name)) continue;
    const auto file = files_.Open(directory_ + "/" + name, OpenMode::kRead);
    if (file.ok()) {
      const Result<bool> ours = IsPageFile(**file);
      if (ours.ok() && !*ours) continue;  // somebody else's
    }
    stores.push_back(Look(name, false));
  }
  return stores;
}

Result<StoreInfo> KvDirectory::Verify(const std::string& file) {
  KVART_RETURN_IF_ERROR(CheckStoreName(file));
  const std::string path = directory_ + "/" + file;
  if (const auto there = files_.Info(path); !there.ok()) return there.status();
  KVART_ASSIGN_OR_RETURN(const bool regular, IsRegular(file));
  if (!regular) return NotOurs(path);
  if (const auto opened = files_.Open(path, OpenMode::kRead); opened.ok()) {
    const Result<bool> ours = IsPageFile(**opened);
    if (ours.ok() && !*ours) return NotOurs(path);
  }
  return Look(file, true);
}

// A link is not: what it names may be anybody's.
Result<bool> KvDirectory::IsRegular(const std::string& name) {
  KVART_ASSIGN_OR_RETURN(const std::vector<std::string> names, files_.List(directory_));
  return std::binary_search(names.begin(), names.end(), name);
}

StoreInfo KvDirectory::Look(const std::string& file, bool payloads) {
  StoreInfo info;
  info.file = file;
  const std::string path = directory_ + "/" + file;
  if (const auto there = files_.Info(path); there.ok()) {
    info.bytes = there->bytes;
    info.last_use = there->modified;
  }
  if (const auto index = files_.Info(directory_ + "/" + IndexOf(file)); index.ok()) info.bytes += index->bytes;
  info.problem = Scan(path, payloads, &info);
  return info;
}

Status KvDirectory::Scan(const std::string& path, bool payloads, StoreInfo* info) {
  KVART_ASSIGN_OR_RETURN(const std::shared_ptr<RandomFile> file, files_.Open(path, OpenMode::kRead));
  info->busy = file->IsLocked(kWriterLock);
  KVART_ASSIGN_OR_RETURN(const PageFileHeader header, ReadPageFileHeader(*file));
  info->fingerprint = Hex(header.fingerprint);
  info->k_format = header.k_format, info->v_format = header.v_format;
  info->n_layers = header.n_layers, info->n_kv_heads = header.n_kv_heads, info->head_dim = header.head_dim;
  info->page_tokens = header.page_tokens, info->sinks = header.sinks;
  info->slot_bytes = header.slot_bytes;
  KVART_ASSIGN_OR_RETURN(const uint64_t size, file->Size());
  info->slots = header.SlotsIn(size);
  for (uint64_t slot = 0; slot < info->slots; ++slot) {
    bool free = false;
    const std::optional<StoredHead> stored = ReadHead(*file, header, slot, &free);
    if (free) continue;
    const bool intact = stored.has_value() && (!payloads || IsPayloadIntact(*file, header, slot, *stored));
    if (!intact) {
      ++info->damaged;
      if (info->damaged_offsets.size() < kMostOffsets) info->damaged_offsets.push_back(header.SlotOffset(slot));
      continue;
    }
    ++(stored->head.kind == SlotKind::kPage ? info->pages : info->sink_records);
    info->last_use = std::max(info->last_use, stored->last_use);
  }
  return Status::Ok();
}

Status KvDirectory::Remove(const std::string& file) {
  KVART_RETURN_IF_ERROR(CheckStoreName(file));
  const std::string path = directory_ + "/" + file;
  KVART_ASSIGN_OR_RETURN(const std::shared_ptr<RandomFile> store, files_.Open(path, OpenMode::kWrite));
  const Status locked =
      store->TryLock(kWriterLock, true);  // held until the name is gone: whoever opens it meanwhile finds that out
  if (locked.code() == StatusCode::kBusy)
    return Status(StatusCode::kBusy, path + " is in use by another process", path);
  KVART_RETURN_IF_ERROR(locked);
  KVART_ASSIGN_OR_RETURN(const bool regular, IsRegular(file));
  KVART_ASSIGN_OR_RETURN(const bool ours, IsPageFile(*store));
  if (!regular || !ours) return NotOurs(path);
  KVART_ASSIGN_OR_RETURN(const bool indexed, IsRegular(IndexOf(file)));
  if (indexed) {
    const std::string index_path = directory_ + "/" + IndexOf(file);
    KVART_ASSIGN_OR_RETURN(const std::shared_ptr<RandomFile> index, files_.Open(index_path, OpenMode::kRead));
    KVART_ASSIGN_OR_RETURN(const bool index_ours, SlotIndex::IsIndexFile(*index));
    if (index_ours) KVART_RETURN_IF_ERROR(files_.Remove(index_path));
  }
  return files_.Remove(path);
}

Result<ClearReport> KvDirectory::Clear(uint64_t keep_bytes) {
  KVART_ASSIGN_OR_RETURN(std::vector<StoreInfo> stores, List());
  std::stable_sort(stores.begin(), stores.end(),
                   [](const StoreInfo& a, const StoreInfo& b) { return a.last_use < b.last_use; });
  ClearReport report;
  for (const StoreInfo& store : stores) report.kept_bytes += store.bytes;
  for (const StoreInfo& store : stores) {
    if (report.kept_bytes <= keep_bytes) break;
    const Status removed = Remove(store.file);
    if (removed.code() == StatusCode::kBusy) {
      ++report.busy_files;
      continue;
    }
    KVART_RETURN_IF_ERROR(removed);
    ++report.removed_files;
    report.removed_bytes += store.bytes;
    report.kept_bytes -= store.bytes;
  }
  return report;
}

}  // namespace kvart

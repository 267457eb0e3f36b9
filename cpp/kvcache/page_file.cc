#include "kvcache/page_file.h"

#include <algorithm>
#include <chrono>
#include <cstring>
#include <thread>

#include "base/hash.h"
#include "kvcache/magic.h"

namespace kvart {
namespace {

constexpr uint8_t kMagic[8] = {'K', 'V', 'A', 'R', 'T', 'P', 'G', 1};
constexpr uint32_t kVersion = 1, kByteOrder = 0x01020304;
constexpr size_t kHeaderUsed = 156, kHeaderChecked = 144;
constexpr size_t kFormatBytes = 32;

template <class T>
void Put(std::vector<uint8_t>& to, size_t offset, T value) {
  std::memcpy(to.data() + offset, &value, sizeof value);
}
template <class T>
T Get(std::span<const uint8_t> from, size_t offset) {
  T value;
  std::memcpy(&value, from.data() + offset, sizeof value);
  return value;
}

std::string GetFormat(std::span<const uint8_t> bytes, size_t offset) {
  std::string name;
  for (size_t i = 0; i < kFormatBytes && bytes[offset + i] != 0; ++i) name += static_cast<char>(bytes[offset + i]);
  return name;
}

Status Refuse(StatusCode code, const std::string& path, const std::string& found, const std::string& wanted) {
  return Status(code, path + " has " + found + "; wanted " + wanted, path);
}

// Makes the file new: the magic goes last, behind a sync.
Status WritePageFileHeader(RandomFile& file, const PageFileHeader& header) {
  const std::vector<uint8_t> bytes = EncodePageFileHeader(header);
  KVART_RETURN_IF_ERROR(file.Allocate(0, kPageFileHeaderBytes));
  KVART_RETURN_IF_ERROR(file.Write(sizeof kMagic, bytes.data() + sizeof kMagic, bytes.size() - sizeof kMagic));
  KVART_RETURN_IF_ERROR(file.Sync());
  KVART_RETURN_IF_ERROR(file.Write(0, bytes.data(), sizeof kMagic));
  return file.Sync();
}

}  // namespace

Result<bool> IsPageFile(const RandomFile& file) {
  KVART_ASSIGN_OR_RETURN(const MagicState state, ReadMagic(file, kMagic, kPageFileHeaderBytes));
  return state != MagicState::kOther;
}

std::string Hex(std::span<const uint8_t> bytes) {
  std::string text;
  for (const uint8_t byte : bytes) {
    text += "0123456789abcdef"[byte >> 4];
    text += "0123456789abcdef"[byte & 15];
  }
  return text;
}

Result<PageFileHeader> MakePageFileHeader(const KvGeometry& g, const StoreOptions& options) {
  if (g.n_layers < 1 || g.n_kv_heads < 1 || g.head_dim < 1 || g.page_tokens < 1 || g.page_tokens > 65536 ||
      options.sinks < 0 || options.sinks > g.page_tokens) {
    return Errorf(StatusCode::kInvalidArgument,
                  "page store of %d layers, %d KV heads of %d, pages of %d tokens, %d sinks: out of range", g.n_layers,
                  g.n_kv_heads, g.head_dim, g.page_tokens, options.sinks);
  }
  for (const std::string& name : {options.k_format, options.v_format}) {
    if (name.empty() || name.size() >= kFormatBytes || name.find('\0') != std::string::npos) {
      return Status(StatusCode::kInvalidArgument,
                    "page store: format '" + name.substr(0, 64) + "'; wanted a name of 1 to 31 bytes");
    }
  }
  if (options.payload_bytes < 1 || options.payload_bytes > uint64_t{1} << 40) {
    return Errorf(StatusCode::kInvalidArgument, "page store: a page of %llu bytes",
                  static_cast<unsigned long long>(options.payload_bytes));
  }
  PageFileHeader h;
  h.n_layers = static_cast<uint32_t>(g.n_layers);
  h.n_kv_heads = static_cast<uint32_t>(g.n_kv_heads);
  h.head_dim = static_cast<uint32_t>(g.head_dim);
  h.page_tokens = static_cast<uint32_t>(g.page_tokens);
  h.sinks = static_cast<uint32_t>(options.sinks);
  h.k_format = options.k_format;
  h.v_format = options.v_format;
  h.fingerprint = options.fingerprint;
  h.slot_bytes = SlotBytes(g.page_tokens, options.payload_bytes);
  return h;
}

std::vector<uint8_t> EncodePageFileHeader(const PageFileHeader& h) {
  std::vector<uint8_t> bytes(kHeaderUsed);
  std::memcpy(bytes.data(), kMagic, sizeof kMagic);
  Put(bytes, 8, kVersion);
  Put(bytes, 12, kByteOrder);
  Put(bytes, 16, h.slot_bytes);
  Put(bytes, 24, h.n_layers);
  Put(bytes, 28, h.n_kv_heads);
  Put(bytes, 32, h.head_dim);
  Put(bytes, 36, h.page_tokens);
  Put(bytes, 40, h.sinks);
  std::copy(h.k_format.begin(), h.k_format.end(), bytes.begin() + 48);
  std::copy(h.v_format.begin(), h.v_format.end(), bytes.begin() + 80);
  std::copy(h.fingerprint.begin(), h.fingerprint.end(), bytes.begin() + 112);
  Put(bytes, kUsedHintOffset, h.used_hint);
  Put(bytes, 152, Crc32c(bytes.data(), kHeaderChecked));
  return bytes;
}

Result<PageFileHeader> ReadPageFileHeader(const RandomFile& file) {
  const std::string& path = file.path();
  KVART_ASSIGN_OR_RETURN(const uint64_t size, file.Size());
  if (size < kPageFileHeaderBytes) {
    return Refuse(StatusCode::kCorrupt, path, std::to_string(size) + " bytes",
                  "a page store's header of 16384: it was cut off");
  }
  std::vector<uint8_t> bytes(kHeaderUsed);
  KVART_RETURN_IF_ERROR(file.Read(0, bytes.data(), bytes.size()));
  if (std::memcmp(bytes.data(), kMagic, sizeof kMagic) != 0) {
    return Refuse(StatusCode::kCorrupt, path, "magic " + Hex({bytes.data(), 8}), Hex(kMagic) + ", a page store's");
  }
  if (const uint32_t order = Get<uint32_t>(bytes, 12); order != kByteOrder) {
    return Refuse(StatusCode::kUnsupported, path, "byte order mark " + std::to_string(order),
                  std::to_string(kByteOrder) + ": it is damaged or from a machine of the other byte order");
  }
  if (const uint32_t version = Get<uint32_t>(bytes, 8); version != kVersion) {
    return Refuse(StatusCode::kUnsupported, path, "format version " + std::to_string(version),
                  "version " + std::to_string(kVersion));
  }
  if (const uint32_t stored = Get<uint32_t>(bytes, 152), computed = Crc32c(bytes.data(), kHeaderChecked);
      stored != computed) {
    return Refuse(StatusCode::kCorrupt, path, "header checksum " + std::to_string(stored),
                  std::to_string(computed) + ": it is damaged");
  }
  PageFileHeader h;
  h.slot_bytes = Get<uint64_t>(bytes, 16);
  h.n_layers = Get<uint32_t>(bytes, 24);
  h.n_kv_heads = Get<uint32_t>(bytes, 28);
  h.head_dim = Get<uint32_t>(bytes, 32);
  h.page_tokens = Get<uint32_t>(bytes, 36);
  h.sinks = Get<uint32_t>(bytes, 40);
  h.k_format = GetFormat(bytes, 48);
  h.v_format = GetFormat(bytes, 80);
  std::copy_n(bytes.begin() + 112, 32, h.fingerprint.begin());
  h.used_hint = Get<uint64_t>(bytes, kUsedHintOffset);
  if (h.slot_bytes % kSlotAlign != 0 || h.slot_bytes > uint64_t{1} << 41 || h.page_tokens > 65536 ||
      h.slot_bytes <= h.PayloadOffset()) {
    return Refuse(
        StatusCode::kCorrupt, path,
        "slots of " + std::to_string(h.slot_bytes) + " bytes and pages of " + std::to_string(h.page_tokens) + " tokens",
        "slots in steps of 16384 bytes that hold a page's head");
  }
  return h;
}

Status CheckSameStore(const std::string& path, const PageFileHeader& found, const PageFileHeader& wanted) {
  const struct {
    const char* what;
    uint64_t found, wanted;
  } numbers[] = {
      {"layers", found.n_layers, wanted.n_layers},   {"KV heads", found.n_kv_heads, wanted.n_kv_heads},
      {"head_dim", found.head_dim, wanted.head_dim}, {"tokens a page", found.page_tokens, wanted.page_tokens},
      {"sinks", found.sinks, wanted.sinks},
  };
  for (const auto& n : numbers) {
    if (n.found != n.wanted) {
      return Refuse(StatusCode::kInvalidArgument, path, std::string(n.what) + ": " + std::to_string(n.found),
                    std::to_string(n.wanted));
    }
  }
  if (found.k_format != wanted.k_format) {
    return Refuse(StatusCode::kInvalidArgument, path, "keys in " + found.k_format, wanted.k_format);
  }
  if (found.v_format != wanted.v_format) {
    return Refuse(StatusCode::kInvalidArgument, path, "values in " + found.v_format, wanted.v_format);
  }
  if (found.slot_bytes != wanted.slot_bytes) {
    return Refuse(StatusCode::kInvalidArgument, path, "slots of " + std::to_string(found.slot_bytes) + " bytes",
                  std::to_string(wanted.slot_bytes));
  }
  if (found.fingerprint != wanted.fingerprint) {
    return Refuse(StatusCode::kInvalidArgument, path, "pages of the model and numerics " + Hex(found.fingerprint),
                  Hex(wanted.fingerprint));
  }
  return Status::Ok();
}

Result<OpenedPageFile> OpenPageFile(FileSystem& files, const std::string& path, const PageFileHeader& wanted) {
  OpenedPageFile page_file;
  for (int attempt = 0; attempt < 100; ++attempt) {
    Result<std::shared_ptr<RandomFile>> opened = files.Open(path, OpenMode::kCreate);
    const Status create_failed = opened.ok() ? Status::Ok() : opened.status();
    if (!opened.ok()) opened = files.Open(path, OpenMode::kRead);
    if (!opened.ok()) return create_failed;
    const std::shared_ptr<RandomFile>& file = page_file.file = std::move(opened).value();
    const Status locked = create_failed.ok() ? file->TryLock(kWriterLock, true) : create_failed;
    page_file.writer = locked.ok();
    if (create_failed.ok() && !locked.ok() && locked.code() != StatusCode::kBusy) return locked;
    if (!file->IsAt(path)) continue;  // removed between open and lock
    KVART_ASSIGN_OR_RETURN(const MagicState magic, ReadMagic(*file, kMagic, kPageFileHeaderBytes));
    page_file.created = magic == MagicState::kUnfinished;
    if (!page_file.created) return page_file;
    if (page_file.writer) {
      KVART_RETURN_IF_ERROR(WritePageFileHeader(*file, wanted));
      KVART_RETURN_IF_ERROR(files.SyncDirectory(path.substr(0, path.rfind('/'))));
      return page_file;
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(10));  // somebody is making it
  }
  return Status(StatusCode::kBusy, path + " is being made by another process, which does not finish", path);
}

std::vector<uint8_t> EncodeHead(const PageFileHeader& header, const StoredHead& stored) {
  std::vector<uint8_t> bytes(header.HeadBytes());
  const SlotHead& head = stored.head;
  Put(bytes, 0, static_cast<uint32_t>(head.kind));
  Put(bytes, 4, head.page);
  std::copy(head.name.begin(), head.name.end(), bytes.begin() + 8);
  std::copy(head.previous.begin(), head.previous.end(), bytes.begin() + 40);
  Put(bytes, 72, stored.payload_bytes);
  Put(bytes, 80, stored.payload_crc);
  Put(bytes, kLastUseOffset, stored.last_use);
  for (size_t i = 0; i < head.ids.size() && i < header.page_tokens; ++i) Put(bytes, 96 + 4 * i, head.ids[i]);
  Put(bytes, 84, Crc32c(bytes.data() + 96, bytes.size() - 96, Crc32c(bytes.data(), 84)));
  return bytes;
}

std::optional<StoredHead> DecodeHead(const PageFileHeader& header, std::span<const uint8_t> bytes, bool* free) {
  *free = std::all_of(bytes.begin(), bytes.begin() + 88, [](uint8_t b) { return b == 0; });
  if (*free) return std::nullopt;
  StoredHead stored;
  stored.head_crc = Get<uint32_t>(bytes, 84);
  if (stored.head_crc != Crc32c(bytes.data() + 96, bytes.size() - 96, Crc32c(bytes.data(), 84))) return std::nullopt;
  SlotHead& head = stored.head;
  head.kind = static_cast<SlotKind>(Get<uint32_t>(bytes, 0));
  head.page = Get<uint32_t>(bytes, 4);
  std::copy_n(bytes.begin() + 8, 32, head.name.begin());
  std::copy_n(bytes.begin() + 40, 32, head.previous.begin());
  stored.payload_bytes = Get<uint64_t>(bytes, 72);
  stored.payload_crc = Get<uint32_t>(bytes, 80);
  stored.last_use = Get<int64_t>(bytes, kLastUseOffset);
  if (head.kind != SlotKind::kPage && head.kind != SlotKind::kSinks) return std::nullopt;
  if (stored.payload_bytes > header.MostPayload()) return std::nullopt;
  if (head.kind == SlotKind::kPage) {
    head.ids.resize(header.page_tokens);
    std::memcpy(head.ids.data(), bytes.data() + 96, 4 * head.ids.size());
  }
  return stored;
}

std::optional<StoredHead> ReadHead(const RandomFile& file, const PageFileHeader& header, uint64_t slot, bool* free) {
  std::vector<uint8_t> bytes(header.HeadBytes());
  *free = false;
  if (!file.Read(header.SlotOffset(slot), bytes.data(), bytes.size()).ok()) return std::nullopt;
  return DecodeHead(header, bytes, free);
}

bool IsPayloadIntact(const RandomFile& file, const PageFileHeader& header, uint64_t slot, const StoredHead& head) {
  std::vector<uint8_t> payload(static_cast<size_t>(head.payload_bytes));
  return file.Read(header.SlotOffset(slot) + header.PayloadOffset(), payload.data(), payload.size()).ok() &&
         Crc32c(payload.data(), payload.size()) == head.payload_crc;
}

}  // namespace kvart

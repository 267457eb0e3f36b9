// One session as one file: Save and LoadSession. FORMAT.md, "A saved session", draws the bytes.
#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <utility>

#include <unistd.h>

#include "base/file.h"
#include "base/hash.h"
#include "engine/impl.h"

namespace kvart {
namespace {

constexpr char kMagic[8] = {'K', 'V', 'A', 'R', 'T', 'S', 'V', 1};
constexpr uint32_t kVersion = 1, kByteOrder = 0x01020304;

// Writes to a file beside the wanted one, which takes its place when all is well.
class Writer {
 public:
  explicit Writer(const std::string& path)
      : path_(path), fresh_(path + ".partial"), file_(std::fopen(fresh_.c_str(), "wbe")) {}
  ~Writer() {
    if (file_ == nullptr) return;
    std::fclose(file_);
    std::remove(fresh_.c_str());
  }
  void Put(const void* data, size_t n) {
    if (file_ == nullptr || failed_) return;
    failed_ = n > 0 && std::fwrite(data, 1, n, file_) != n;
    crc_ = Crc32c(data, n, crc_);
  }
  template <class T>
  void Put(T value) {
    Put(&value, sizeof value);
  }
  // A length, the bytes, and a checksum of both.
  void PutPiece(const void* data, uint64_t n) {
    crc_ = 0;
    Put(n);
    Put(data, static_cast<size_t>(n));
    const uint32_t crc = crc_;
    Put(crc);
  }
  Status Finish() {
    if (file_ == nullptr || failed_ || std::fflush(file_) != 0 || fsync(fileno(file_)) != 0) return Failed();
    std::FILE* file = std::exchange(file_, nullptr);
    if (std::fclose(file) == 0 && std::rename(fresh_.c_str(), path_.c_str()) == 0) return Status::Ok();
    const Status status = Failed();
    std::remove(fresh_.c_str());
    return status;
  }

 private:
  Status Failed() const {
    const StatusCode code = errno == ENOSPC ? StatusCode::kNoSpace : StatusCode::kIo;
    return Status(code, "cannot write " + path_ + ": " + std::strerror(errno), path_);
  }
  const std::string path_, fresh_;
  std::FILE* file_;
  bool failed_ = false;
  uint32_t crc_ = 0;
};

class Reader {
 public:
  explicit Reader(std::shared_ptr<const Mapping> file) : file_(std::move(file)) {}

  Status Raw(void* to, size_t n, const char* what) {
    if (n > file_->bytes().size() - at_) return Corrupt(std::string(what) + ": the file ends in it");
    std::memcpy(to, file_->bytes().data() + at_, n);
    at_ += n;
    return Status::Ok();
  }
  Result<std::span<const uint8_t>> Piece(const char* what) {
    const size_t begin = at_;
    uint64_t n = 0;
    KVART_RETURN_IF_ERROR(Raw(&n, sizeof n, what));
    const uint64_t left = file_->bytes().size() - at_;
    if (n > left || left - n < 4)
      return Corrupt(std::string(what) + " claims " + std::to_string(n) + " bytes; " + std::to_string(left) +
                     " are left");
    const std::span<const uint8_t> bytes = file_->bytes().subspan(at_, static_cast<size_t>(n));
    at_ += static_cast<size_t>(n);
    uint32_t crc = 0;
    const uint32_t found = Crc32c(file_->bytes().data() + begin, at_ - begin);
    KVART_RETURN_IF_ERROR(Raw(&crc, sizeof crc, what));
    if (crc != found) return Corrupt(std::string(what) + ": the checksum does not agree");
    return bytes;
  }
  Result<std::string> Text(const char* what) {
    KVART_ASSIGN_OR_RETURN(const std::span<const uint8_t> bytes, Piece(what));
    return std::string(bytes.begin(), bytes.end());
  }
  Status Corrupt(const std::string& message) const {
    return Status(StatusCode::kCorrupt, file_->path() + ", offset " + std::to_string(at_) + ": " + message,
                  file_->path(), static_cast<int64_t>(at_));
  }

 private:
  std::shared_ptr<const Mapping> file_;
  size_t at_ = 0;
};

std::string Short(const Digest& digest) {
  char text[17];
  for (int i = 0; i < 8; ++i) std::snprintf(text + 2 * i, 3, "%02x", digest[static_cast<size_t>(i)]);
  return text;
}

// What a file says before its K/V.
struct SavedHead {
  Digest weights{};
  std::string model, numerics, k_format, v_format;
  int32_t sinks = 0;
  int64_t window = 0;
  std::vector<int32_t> ids;
};

Result<SavedHead> ReadHead(Reader& r) {
  char magic[8];
  uint32_t version = 0, order = 0;
  KVART_RETURN_IF_ERROR(r.Raw(magic, sizeof magic, "magic"));
  if (std::memcmp(magic, kMagic, sizeof magic) != 0) return r.Corrupt("not a saved session of kvart");
  KVART_RETURN_IF_ERROR(r.Raw(&version, sizeof version, "version"));
  KVART_RETURN_IF_ERROR(r.Raw(&order, sizeof order, "byte order"));
  if (order != kByteOrder) return r.Corrupt("the byte order is another machine's");
  if (version != kVersion)
    return r.Corrupt("version " + std::to_string(version) + "; this kvart reads " + std::to_string(kVersion));
  SavedHead head;
  KVART_ASSIGN_OR_RETURN(const std::span<const uint8_t> weights, r.Piece("weights' hash"));
  if (weights.size() != head.weights.size())
    return r.Corrupt("a weights' hash of " + std::to_string(weights.size()) + " bytes; 32 are wanted");
  std::copy(weights.begin(), weights.end(), head.weights.begin());
  KVART_ASSIGN_OR_RETURN(head.model, r.Text("model's name"));
  KVART_ASSIGN_OR_RETURN(head.numerics, r.Text("numerics"));
  KVART_ASSIGN_OR_RETURN(head.k_format, r.Text("key format"));
  KVART_ASSIGN_OR_RETURN(head.v_format, r.Text("value format"));
  KVART_RETURN_IF_ERROR(r.Raw(&head.sinks, sizeof head.sinks, "sinks"));
  KVART_RETURN_IF_ERROR(r.Raw(&head.window, sizeof head.window, "window"));
  KVART_ASSIGN_OR_RETURN(const std::span<const uint8_t> ids, r.Piece("token ids"));
  if (ids.size() % 4 != 0)
    return r.Corrupt("token ids of " + std::to_string(ids.size()) + " bytes, which is no multiple of 4");
  head.ids.resize(ids.size() / 4);
  if (!ids.empty()) std::memcpy(head.ids.data(), ids.data(), ids.size());
  return head;
}

// The pieces; views into the file. copies: pieces that must be owned.
Status ReadPieces(Reader& r, KvPieces* pieces) {
  uint64_t n_sealed = 0;
  KVART_RETURN_IF_ERROR(r.Raw(&n_sealed, sizeof n_sealed, "number of pages"));
  for (uint64_t i = 0; i < n_sealed; ++i) {  // each takes at least twelve bytes, so a lie ends with the file
    KVART_ASSIGN_OR_RETURN(const std::span<const uint8_t> payload, r.Piece("page"));
    pieces->sealed.push_back(payload);
  }
  KVART_ASSIGN_OR_RETURN(const std::span<const uint8_t> sinks, r.Piece("sinks"));
  pieces->sinks.assign(sinks.begin(), sinks.end());
  KVART_RETURN_IF_ERROR(r.Raw(&pieces->open_tokens, sizeof pieces->open_tokens, "open tokens"));
  KVART_ASSIGN_OR_RETURN(const std::span<const uint8_t> open, r.Piece("open page"));
  pieces->open.assign(open.begin(), open.end());
  return Status::Ok();
}

}  // namespace

Status Session::Save(const std::string& path) {
  return Guarded([&]() -> Status {
    Impl& s = *impl_;
    KVART_RETURN_IF_ERROR(s.CheckUsable());
    const std::lock_guard lock(s.shared().mutex);
    KVART_RETURN_IF_ERROR(s.DropDraft());
    if (s.kv->size() < static_cast<int64_t>(s.tokens.size())) KVART_RETURN_IF_ERROR(s.ComputeLast());
    KVART_ASSIGN_OR_RETURN(const Digest weights, s.shared().WeightsHash());
    KvPieces pieces;
    if (s.geometry.seals()) {
      KVART_ASSIGN_OR_RETURN(pieces, s.kv->Export());
    }
    const std::string numerics = s.shared().Numerics(s.geometry, s.options.window);
    Writer w(path);
    w.Put(kMagic, sizeof kMagic);
    w.Put(kVersion);
    w.Put(kByteOrder);
    const auto text = [&](const std::string& value) { w.PutPiece(value.data(), value.size()); };
    w.PutPiece(weights.data(), weights.size());
    text(s.shared().info.name);
    text(numerics);
    text(ToString(s.geometry.formats.k, true));
    text(ToString(s.geometry.formats.v, false));
    w.Put(static_cast<int32_t>(s.options.sinks));
    w.Put(s.options.window);
    w.PutPiece(s.tokens.data(), s.tokens.size() * sizeof(int32_t));
    w.Put(static_cast<uint64_t>(pieces.sealed.size()));
    for (const std::span<const uint8_t> payload : pieces.sealed) w.PutPiece(payload.data(), payload.size());
    w.PutPiece(pieces.sinks.data(), pieces.sinks.size());
    w.Put(pieces.open_tokens);
    w.PutPiece(pieces.open.data(), pieces.open.size());
    return w.Finish();
  });
}

Result<std::unique_ptr<Session>> Model::LoadSession(const std::string& path, const SessionOptions& options) {
  return Guarded([&]() -> Result<std::unique_ptr<Session>> {
    KVART_RETURN_IF_ERROR(impl_->CheckProcess());
    KVART_ASSIGN_OR_RETURN(std::shared_ptr<const Mapping> file, Mapping::Open(path));
    Reader reader(std::move(file));
    KVART_ASSIGN_OR_RETURN(SavedHead head, ReadHead(reader));
    KvPieces pieces;
    KVART_RETURN_IF_ERROR(ReadPieces(reader, &pieces));

    SessionOptions saved = options;
    saved.name.clear();
    saved.k_format = head.k_format;
    saved.v_format = head.v_format;
    saved.sinks = head.sinks;
    saved.window = head.window;
    saved.cache = true;
    saved.layout = KvLayout::kPaged;
    KVART_ASSIGN_OR_RETURN(std::unique_ptr<Session> session, NewSession(saved));
    Session::Impl& s = session->impl();
    const std::lock_guard lock(impl_->mutex);
    KVART_ASSIGN_OR_RETURN(const Digest weights, impl_->WeightsHash());
    if (weights != head.weights) {
      return Status(StatusCode::kUnsupported,
                    path + " is a session of '" + head.model.substr(0, 100) + "' (weights " + Short(head.weights) +
                        "); this model is '" + impl_->info.name + "' (weights " + Short(weights) + ")",
                    path);
    }
    for (const int32_t id : head.ids) {
      if (id < 0 || id >= impl_->info.n_vocab)
        return reader.Corrupt("token id " + std::to_string(id) + " is out of range");
    }
    if (static_cast<int64_t>(head.ids.size()) > s.ctx) {
      return Errorf(StatusCode::kFull, "%s holds %zu tokens; the context holds %lld", path.c_str(), head.ids.size(),
                    static_cast<long long>(s.ctx));
    }
    s.resumed.existed = true;
    s.resumed.tokens = static_cast<int64_t>(head.ids.size());
    const std::string numerics = impl_->Numerics(s.geometry, saved.window);
    if (numerics != head.numerics) {
      s.resumed.note = "its K/V were made with other numerics (" + head.numerics.substr(0, 400) + "; now " + numerics +
                       "): the text is computed again from its token ids";
    } else if (s.geometry.seals()) {
      // A store of its own: pages of a file that somebody handed over are not shared with anybody.
      KVART_ASSIGN_OR_RETURN(std::shared_ptr<PageStore> store, impl_->NewStore(s.geometry, {}, true));
      KVART_ASSIGN_OR_RETURN(const Impl::Cache cache, impl_->CacheFor(s.geometry, saved));
      KVART_ASSIGN_OR_RETURN(s.kv, NewPagedSequence(cache.pool, std::move(store), saved.window));
      KVART_RETURN_IF_ERROR(s.kv->Restore(head.ids, pieces));
      s.resumed.from_pages = static_cast<int64_t>(pieces.sealed.size()) * s.geometry.page_tokens;
      s.resumed.from_open_page = pieces.open_tokens;
    }
    s.tokens = std::move(head.ids);
    s.computed_high = static_cast<int64_t>(s.tokens.size());
    s.resumed.to_compute = s.resumed.tokens - s.kv->size();
    return session;
  });
}

}  // namespace kvart

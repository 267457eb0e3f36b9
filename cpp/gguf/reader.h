// A cursor over a file's bytes that never steps past the end, and the errors that say where it stood.
// May depend on: base. Next stop: gguf.cc, the only user.
#pragma once

#include <cstdint>
#include <cstring>
#include <span>
#include <string>
#include <string_view>

#include "base/status.h"

namespace kvart::gguf_internal {

// Text from a file, fit for a message: in quotes, shortened, with anything but plain ASCII as \xNN.
inline std::string Quote(std::string_view text) {
  constexpr size_t kMax = 80;
  constexpr char kHex[] = "0123456789abcdef";
  std::string out = "\"";
  for (const char c : text.substr(0, kMax)) {
    const auto byte = static_cast<unsigned char>(c);
    if (byte >= 0x20 && byte < 0x7f && c != '"' && c != '\\') {
      out += c;
    } else {
      out += "\\x";
      out += kHex[byte >> 4];
      out += kHex[byte & 15];
    }
  }
  return out + (text.size() > kMax ? "...\"" : "\"");
}

// The bytes and the name must outlive the reader. Not thread-safe.
class ByteReader {
 public:
  ByteReader(std::span<const uint8_t> bytes, const std::string& name) : bytes_(bytes), name_(name) {}

  uint64_t offset() const { return offset_; }
  uint64_t remaining() const { return bytes_.size() - offset_; }

  Status Fail(StatusCode code, uint64_t offset, const std::string& message) const {
    return {code, name_ + ", byte " + std::to_string(offset) + ": " + message, name_, static_cast<int64_t>(offset)};
  }
  Status Corrupt(uint64_t offset, const std::string& message) const {
    return Fail(StatusCode::kCorrupt, offset, message);
  }

  // `what` names the thing being read, for the error.
  template <class T>
  Status Read(T* out, std::string_view what) {
    if (sizeof(T) > remaining()) return TooShort(sizeof(T), what);
    std::memcpy(out, bytes_.data() + offset_, sizeof(T));
    offset_ += sizeof(T);
    return Status::Ok();
  }

  // A 64-bit length and that many bytes. The view points into the bytes.
  Status ReadString(std::string_view* out, std::string_view what) {
    const uint64_t start = offset_;
    uint64_t length = 0;
    KVART_RETURN_IF_ERROR(Read(&length, what));
    if (length > remaining()) {
      return Corrupt(start, std::string(what) + " claims " + std::to_string(length) + " bytes, but the file has only " +
                                std::to_string(remaining()) + " more");
    }
    *out = {reinterpret_cast<const char*>(bytes_.data() + offset_), static_cast<size_t>(length)};
    offset_ += length;
    return Status::Ok();
  }

 private:
  Status TooShort(uint64_t wanted, std::string_view what) const {
    return Corrupt(offset_, "the file ends within " + std::string(what) + ": " + std::to_string(wanted) +
                                " bytes wanted, " + std::to_string(remaining()) + " left");
  }

  std::span<const uint8_t> bytes_;
  const std::string& name_;
  uint64_t offset_ = 0;  // never past the end
};

}  // namespace kvart::gguf_internal

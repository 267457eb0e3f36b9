// Files, mapped read-only. Everything that reads a model goes through a Mapping or a plain byte span, so tests can hand
// in bytes of their own. May depend on: status. Next for the token: gguf/gguf.h finds the tensors in the mapping.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>

#include "base/status.h"

namespace kvart {

// A whole file, mapped read-only and shared. Owns the mapping; immutable and safe to share between threads.
// A file that is truncated while mapped makes the system raise SIGBUS on access: model files are not expected to
// change.
class Mapping {
 public:
  static Result<std::shared_ptr<const Mapping>> Open(const std::string& path);
  ~Mapping();
  Mapping(const Mapping&) = delete;
  Mapping& operator=(const Mapping&) = delete;

  std::span<const uint8_t> bytes() const { return {data_, size_}; }
  const std::string& path() const { return path_; }

  // Tells the system that these bytes are not needed in memory for now; they stay readable. Rounded inwards to pages.
  void Drop(const uint8_t* begin, size_t size) const;
  // Asks for these bytes to be read ahead.
  void Prefetch(const uint8_t* begin, size_t size) const;

 private:
  Mapping() = default;
  const uint8_t* data_ = nullptr;
  size_t size_ = 0;
  std::string path_;
};

}  // namespace kvart

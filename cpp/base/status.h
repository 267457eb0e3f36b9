// Status and Result: how the core reports failure. The core never throws across a boundary, prints or aborts.
// May depend on: nothing. Next for the token: base/file.h maps the model.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <utility>

namespace kvart {

enum class StatusCode {
  kOk = 0,
  kInvalidArgument,  // what the caller passed is wrong
  kCorrupt,          // a file's content is wrong
  kNotFound,         // a file, tensor, key or name is missing
  kUnsupported,      // well-formed, but not something kvart does
  kOutOfMemory,
  kIo,         // the system refused a read, write, map or sync
  kFull,       // the context is full
  kNoSpace,    // the disk, or the budget of the cache, is full
  kCancelled,  // the caller asked to stop
  kBusy,       // someone else holds it
  kInternal,   // a bug in kvart
};

const char* StatusCodeName(StatusCode code);  // "invalid_argument", "corrupt", ...

// Value type; safe to copy and move between threads.
class [[nodiscard]] Status {
 public:
  static constexpr int64_t kNoOffset = -1;

  Status() = default;
  Status(StatusCode code, std::string message) : code_(code), message_(std::move(message)) {}
  // file and offset say where; they stand in the message as well.
  Status(StatusCode code, std::string message, std::string file, int64_t offset = kNoOffset)
      : code_(code), message_(std::move(message)), file_(std::move(file)), offset_(offset) {}

  static Status Ok() { return {}; }
  bool ok() const { return code_ == StatusCode::kOk; }
  StatusCode code() const { return code_; }
  const std::string& message() const { return message_; }
  const std::string& file() const { return file_; }
  int64_t offset() const { return offset_; }

 private:
  StatusCode code_ = StatusCode::kOk;
  std::string message_;
  std::string file_;
  int64_t offset_ = kNoOffset;
};

// printf-style message. Example: Errorf(StatusCode::kCorrupt, "tensor %s has %lld rows", name, rows).
#if defined(__GNUC__)
__attribute__((format(printf, 2, 3)))
#endif
Status
Errorf(StatusCode code, const char* format, ...);

// A T or the reason why there is none. value() is valid only when ok().
template <class T>
class [[nodiscard]] Result {
 public:
  Result(T value) : value_(std::move(value)) {}          // NOLINT: implicit by design
  Result(Status status) : status_(std::move(status)) {}  // NOLINT: implicit by design

  bool ok() const { return value_.has_value(); }
  const Status& status() const { return status_; }
  T& value() & { return *value_; }
  const T& value() const& { return *value_; }
  T&& value() && { return std::move(*value_); }
  T* operator->() { return &*value_; }
  const T* operator->() const { return &*value_; }
  T& operator*() { return *value_; }
  const T& operator*() const { return *value_; }

 private:
  std::optional<T> value_;
  Status status_;
};

}  // namespace kvart

#define KVART_CONCAT_INNER(a, b) a##b
#define KVART_CONCAT(a, b) KVART_CONCAT_INNER(a, b)

#define KVART_RETURN_IF_ERROR(expr)                                                        \
  do {                                                                                     \
    if (::kvart::Status kvart_status_ = (expr); !kvart_status_.ok()) return kvart_status_; \
  } while (0)

// KVART_ASSIGN_OR_RETURN(auto file, File::Open(path));
#define KVART_ASSIGN_OR_RETURN(lhs, expr) KVART_ASSIGN_OR_RETURN_IMPL(KVART_CONCAT(kvart_result_, __LINE__), lhs, expr)
#define KVART_ASSIGN_OR_RETURN_IMPL(tmp, lhs, expr) \
  auto tmp = (expr);                                \
  if (!tmp.ok()) return tmp.status();               \
  lhs = std::move(tmp).value()

#include "base/status.h"

#include <cstdarg>
#include <cstdio>

namespace kvart {

const char* StatusCodeName(StatusCode code) {
  switch (code) {
    case StatusCode::kOk: return "ok";
    case StatusCode::kInvalidArgument: return "invalid_argument";
    case StatusCode::kCorrupt: return "corrupt";
    case StatusCode::kNotFound: return "not_found";
    case StatusCode::kUnsupported: return "unsupported";
    case StatusCode::kOutOfMemory: return "out_of_memory";
    case StatusCode::kIo: return "io";
    case StatusCode::kFull: return "full";
    case StatusCode::kNoSpace: return "no_space";
    case StatusCode::kCancelled: return "cancelled";
    case StatusCode::kBusy: return "busy";
    case StatusCode::kInternal: return "internal";
  }
  return "unknown";
}

Status Errorf(StatusCode code, const char* format, ...) {
  char buffer[1024];  // a longer message is cut: names from hostile files have no say in our memory
  va_list args;
  va_start(args, format);
  std::vsnprintf(buffer, sizeof buffer, format, args);
  va_end(args);
  return Status(code, buffer);
}

}  // namespace kvart

// Inside gguf only: reads one metadata value. May depend on: base. Next stop: values.cc.
#pragma once

#include <cstdint>
#include <string_view>

#include "gguf/gguf.h"
#include "gguf/reader.h"

namespace kvart::gguf_internal {

// Beyond, containers grow with what was really read, not with what the file claims.
constexpr uint64_t kReserveAtMost = 4096;

// A type id and a value of that type. what: names the value in errors. budget: how many more array elements this file
// may have; lowered by those that were read.
Status ReadValue(ByteReader* in, std::string_view what, uint64_t* budget, GgufValue* out);

}  // namespace kvart::gguf_internal

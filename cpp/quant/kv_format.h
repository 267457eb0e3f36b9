// The number formats of sealed K/V pages, as data: how many bits, along which axis values share a scale, in what
// groups. May depend on: base. Next for the token: quant/kv_block.h encodes and decodes; kvcache/FORMAT.md draws every
// byte.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "base/status.h"

namespace kvart {

enum class KvCode : uint8_t { kF32 = 0, kF16 = 1, kInt8 = 2, kInt4 = 3 };
enum class KvAxis : uint8_t {
  kChannel = 0,  // a scale a channel, over a group of tokens
  kToken = 1,    // a scale a token, over a group of channels
};

struct KvFormat {
  KvCode code = KvCode::kF16;
  KvAxis axis = KvAxis::kToken;
  bool symmetric = false;  // no centre: it is kept as zero
  bool norm = false;       // rows are divided by their length first, which is kept as a half
  uint16_t group = 0;      // values that share a scale; 0: all of the page's tokens, or all of the head's channels

  bool operator==(const KvFormat&) const = default;
  // Keys that have second codes for some channels (quant/kv_fine.h): `int4` with a group that is the page.
  bool fine() const { return code == KvCode::kInt4 && axis == KvAxis::kChannel && !symmetric && group == 0; }
  bool is_float() const { return code == KvCode::kF32 || code == KvCode::kF16; }
};

// The formats of keys and values that a name stands for: "f32", "f16", "int8", "int4" (keys per channel, the weightiest
// with a second code; values per token; both with a centre), "int4-sym" (no centres), "int4-token" (keys per token as
// well), "int4-knorm" (unit keys per token, their lengths apart), and any of the integer ones but int4-knorm with
// "-g32", "-g64" or "-g128" behind. InvalidArgument lists them.
struct KvFormats {
  KvFormat k, v;
  bool operator==(const KvFormats&) const = default;
};
// "int4", "int4-token-g32": parses back to an equal format.
std::string ToString(const KvFormat& format, bool keys);
Result<KvFormats> ParseKvFormats(std::string_view k_name, std::string_view v_name);

}  // namespace kvart

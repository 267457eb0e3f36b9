// Whether a file is one that kvart made, from its first eight bytes: nothing else may be removed or made anew.
// May depend on: base. Used by page_file.cc, index.cc and journal.cc.
#pragma once

#include <algorithm>
#include <cstdint>
#include <cstring>

#include "base/fs.h"
#include "base/status.h"

namespace kvart {

enum class MagicState {
  kOther,       // something else lies there
  kUnfinished,  // its maker stopped: the magic, which is written last, is not complete
  kWhole,
};

// An unfinished file has most_unfinished bytes at most, and each byte of its magic is right or zero.
inline Result<MagicState> ReadMagic(const RandomFile& file, const uint8_t (&magic)[8], uint64_t most_unfinished) {
  KVART_ASSIGN_OR_RETURN(const uint64_t size, file.Size());
  uint8_t found[sizeof magic] = {};
  KVART_RETURN_IF_ERROR(file.Read(0, found, static_cast<size_t>(std::min<uint64_t>(sizeof found, size))));
  if (std::memcmp(found, magic, sizeof magic) == 0) return MagicState::kWhole;
  if (size > most_unfinished) return MagicState::kOther;
  for (size_t i = 0; i < sizeof magic; ++i) {
    if (found[i] != 0 && found[i] != magic[i]) return MagicState::kOther;
  }
  return MagicState::kUnfinished;
}

}  // namespace kvart

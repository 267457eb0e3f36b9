#include "kvcache/store.h"

#include "base/hash.h"

namespace kvart {

PageName NameOfPage(const PageName& previous, std::span<const int32_t> ids) {
  Sha256 hash;
  hash.Update(previous.data(), previous.size());
  for (const int32_t id : ids) {
    const uint32_t u = static_cast<uint32_t>(id);
    const uint8_t bytes[4] = {static_cast<uint8_t>(u), static_cast<uint8_t>(u >> 8), static_cast<uint8_t>(u >> 16),
                              static_cast<uint8_t>(u >> 24)};
    hash.Update(bytes, sizeof bytes);
  }
  return hash.Finish();
}

}  // namespace kvart

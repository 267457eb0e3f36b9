// Checksums and names: SHA-256 where bytes are named by their content, CRC-32C where damage is to be noticed.
// May depend on: nothing. Next for the token: kvcache/store.h names pages with it.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

namespace kvart {

// FIPS 180-4, fed in pieces. Copyable: a copy goes on from where the original stands.
class Sha256 {
 public:
  using Digest = std::array<uint8_t, 32>;

  void Update(const void* data, size_t n);
  Digest Finish();  // once, at the end
  static Digest Of(const void* data, size_t n);

 private:
  void Compress(const uint8_t* block);

  std::array<uint32_t, 8> state_{0x6a09e667, 0xbb67ae85, 0x3c6ef372, 0xa54ff53a,
                                 0x510e527f, 0x9b05688c, 0x1f83d9ab, 0x5be0cd19};
  uint64_t bytes_ = 0;
  std::array<uint8_t, 64> block_{};
};

// Castagnoli, reflected, as iSCSI has it (RFC 3720). crc is what came out for the bytes before these.
uint32_t Crc32c(const void* data, size_t n, uint32_t crc = 0);

}  // namespace kvart

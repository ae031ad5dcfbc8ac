/* SHA-256 (FIPS 180-4) and HMAC (RFC 2104), for the proof that a member knows the secret. */
#ifndef HOPSML_COLLECTIVE_SHA256_H
#define HOPSML_COLLECTIVE_SHA256_H

#include <array>
#include <cstddef>
#include <cstdint>

namespace hopsml {

using Digest = std::array<uint8_t, 32>;

class Sha256 {
 public:
  Sha256& update(const void* data, size_t size);
  Digest finish();

 private:
  void block(const uint8_t* data);

  std::array<uint32_t, 8> state_{0x6a09e667, 0xbb67ae85, 0x3c6ef372, 0xa54ff53a,
                                 0x510e527f, 0x9b05688c, 0x1f83d9ab, 0x5be0cd19};
  std::array<uint8_t, 64> rest_{};
  size_t held_ = 0;
  uint64_t total_ = 0;
};

Digest hmac_sha256(const void* key, size_t key_size, const void* data, size_t size);

/* Returns whether both are equal, in a time that does not depend on where they differ. */
bool equal_in_constant_time(const Digest& a, const uint8_t* b);

}  // namespace hopsml

#endif

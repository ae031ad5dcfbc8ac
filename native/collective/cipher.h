/* Encryption of one direction of a connection: AES-256 in Galois/Counter Mode (NIST SP 800-38D), or ChaCha20-Poly1305
 * (RFC 8439) on processors without AES instructions; and keys derived from secrets (RFC 5869). */
#ifndef HOPSML_COLLECTIVE_CIPHER_H
#define HOPSML_COLLECTIVE_CIPHER_H

#include <array>
#include <memory>
#include <string>

#include "sha256.h"

namespace hopsml {

/* Protection of the data that a member sends, as it announces it to the others. */
enum class Protection : uint32_t { kNone = 0, kQuickAes = 1, kSlowAes = 2 };

enum class CipherKind { kAes, kChaCha };

using Key = Digest;
using Tag = std::array<uint8_t, 16>;

/* Returns the cipher for two members that both encrypt. */
inline CipherKind cipher_of(Protection one, Protection other) {
  return one == Protection::kQuickAes && other == Protection::kQuickAes ? CipherKind::kAes : CipherKind::kChaCha;
}

/* Returns the protection that suits this processor. Throws Trouble if no library for encryption is available. */
Protection own_protection();

/* Derives a key from `secret`, which must have enough entropy, for one purpose. */
Key derive_key(const void* secret, size_t secret_size, const std::string& salt, const std::string& purpose);

/* Cipher for consecutive records of one direction; a record's nonce is its number. */
class Cipher {
 public:
  Cipher(CipherKind kind, const Key& key, bool encrypts);
  uint64_t records() const { return number_; } /* number of complete records */
  /* Processes a part of the record; `in` and `out` may be the same. */
  void update(const uint8_t* in, uint8_t* out, size_t size);
  /* Ends an encrypted record and returns its tag. */
  Tag close();
  /* Ends a decrypted record; returns true if it is what was encrypted under this number. */
  bool closes(Tag tag);

  /* After so many records (16 GiB of the largest) the next key is derived from the present one. */
  static constexpr uint64_t kRecordsOfAKey = 1 << 18;

 private:
  void begin();
  void check(bool holds) const;

  CipherKind kind_;
  Key key_;
  bool encrypts_;
  std::unique_ptr<void, void (*)(void*)> context_;
  uint64_t number_ = 0;
  bool within_ = false; /* whether a record is in progress */
};

}  // namespace hopsml

#endif

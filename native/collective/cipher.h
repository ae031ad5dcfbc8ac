/* How one direction of a connection is encrypted: AES-256 in Galois/Counter Mode (NIST SP 800-38D), or ChaCha20-Poly1305 (RFC
 * 8439) where a processor has no instructions for AES; and keys from secrets (RFC 5869). */
#ifndef HOPSML_COLLECTIVE_CIPHER_H
#define HOPSML_COLLECTIVE_CIPHER_H

#include <array>
#include <memory>
#include <string>

#include "sha256.h"

namespace hopsml {

/* What a member does with what it sends, as it tells the others. */
enum class Protection : uint32_t { kNone = 0, kQuickAes = 1, kSlowAes = 2 };

enum class CipherKind { kAes, kChaCha };

using Key = Digest;
using Tag = std::array<uint8_t, 16>;

/* For two members that both protect what they send. */
inline CipherKind cipher_of(Protection one, Protection other) {
  return one == Protection::kQuickAes && other == Protection::kQuickAes ? CipherKind::kAes : CipherKind::kChaCha;
}

/* Of this processor. Trouble where there is nothing to encrypt with. */
Protection own_protection();

/* A key of `secret`, which has enough chance in it, for one purpose. */
Key derive_key(const void* secret, size_t secret_size, const std::string& salt, const std::string& purpose);

/* Records in a row, each with the next number, which is its nonce; all in one direction. */
class Cipher {
 public:
  Cipher(CipherKind kind, const Key& key, bool encrypts);
  uint64_t records() const { return number_; } /* those that are complete */
  /* Some of the record; `in` and `out` may be the same. */
  void update(const uint8_t* in, uint8_t* out, size_t size);
  /* The end of a record that was encrypted. */
  Tag close();
  /* The end of one that was decrypted: whether it is what was encrypted under this number. */
  bool closes(Tag tag);

  /* After so many (16 GiB of the largest) there is another key, made of the one before. */
  static constexpr uint64_t kRecordsOfAKey = 1 << 18;

 private:
  void begin();
  void check(bool holds) const;

  CipherKind kind_;
  Key key_;
  bool encrypts_;
  std::unique_ptr<void, void (*)(void*)> context_;
  uint64_t number_ = 0;
  bool within_ = false; /* a record has begun */
};

}  // namespace hopsml

#endif

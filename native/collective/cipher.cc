#include "cipher.h"

#ifdef __aarch64__
#include <asm/hwcap.h>
#include <sys/auxv.h>
#endif

#include <cstring>

#include "libcrypto.h"
#include "trouble.h"

namespace hopsml {
namespace {

constexpr int kGetTag = 0x10, kSetTag = 0x11; /* EVP_CTRL_AEAD_GET_TAG, EVP_CTRL_AEAD_SET_TAG */

bool has_aes() {
#if defined(__x86_64__)
  return __builtin_cpu_supports("aes") && __builtin_cpu_supports("pclmul");
#elif defined(__aarch64__)
  return (getauxval(AT_HWCAP) & HWCAP_AES) != 0 && (getauxval(AT_HWCAP) & HWCAP_PMULL) != 0;
#else
  return false;
#endif
}

}  // namespace

Protection own_protection() {
  libcrypto();
  return has_aes() ? Protection::kQuickAes : Protection::kSlowAes;
}

Key derive_key(const void* secret, size_t secret_size, const std::string& salt, const std::string& purpose) {
  Digest extracted = hmac_sha256(salt.data(), salt.size(), secret, secret_size);
  std::string text = purpose + '\1';
  return hmac_sha256(extracted.data(), extracted.size(), text.data(), text.size());
}

Cipher::Cipher(CipherKind kind, const Key& key, bool encrypts)
    : kind_(kind), key_(key), encrypts_(encrypts), context_(libcrypto().new_context(), libcrypto().free_context) {
  check(context_ != nullptr);
}

void Cipher::check(bool holds) const {
  if (holds) return;
  const char* name = kind_ == CipherKind::kAes ? "AES-256-GCM" : "ChaCha20-Poly1305";
  throw Trouble{HOPSML_UNAVAILABLE, -1,
                std::string("OpenSSL's libcrypto refuses ") + name +
                    ": its configuration has to allow it on every machine; or train without encryption"};
}

void Cipher::begin() {
  const Libcrypto& library = libcrypto();
  uint8_t nonce[12] = {};
  std::memcpy(nonce + 4, &number_, sizeof number_);
  if (number_ % kRecordsOfAKey == 0) {
    if (number_ > 0) key_ = derive_key(key_.data(), key_.size(), "", "hopsml collective 1: next key");
    const void* cipher = kind_ == CipherKind::kAes ? library.aes_256_gcm() : library.chacha20_poly1305();
    check(library.init(context_.get(), cipher, nullptr, key_.data(), nonce, encrypts_) == 1);
  } else {
    check(library.init(context_.get(), nullptr, nullptr, nullptr, nonce, encrypts_) == 1);
  }
  within_ = true;
}

void Cipher::update(const uint8_t* in, uint8_t* out, size_t size) {
  if (!within_) begin();
  int written = 0;
  check(libcrypto().update(context_.get(), out, &written, in, int(size)) == 1 && written == int(size));
}

Tag Cipher::close() {
  Tag tag{};
  uint8_t none[16];
  int written = 0;
  check(libcrypto().finish(context_.get(), none, &written) == 1 && written == 0);
  check(libcrypto().control(context_.get(), kGetTag, int(tag.size()), tag.data()) == 1);
  number_++, within_ = false;
  return tag;
}

bool Cipher::closes(Tag tag) {
  uint8_t none[16];
  int written = 0;
  check(libcrypto().control(context_.get(), kSetTag, int(tag.size()), tag.data()) == 1);
  if (libcrypto().finish(context_.get(), none, &written) != 1) return false;
  number_++, within_ = false;
  return true;
}

}  // namespace hopsml

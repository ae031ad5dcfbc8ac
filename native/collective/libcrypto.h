/* What OpenSSL's libcrypto does for us, found while the process runs: nothing is linked with it, so this loads without. */
#ifndef HOPSML_COLLECTIVE_LIBCRYPTO_H
#define HOPSML_COLLECTIVE_LIBCRYPTO_H

namespace hopsml {

/* Its functions as its manual has them; contexts and ciphers are its own. */
struct Libcrypto {
  void* (*new_context)();
  void (*free_context)(void* context);
  int (*control)(void* context, int what, int size, void* data);
  int (*init)(void* context, const void* cipher, void* engine, const unsigned char* key, const unsigned char* nonce,
              int encrypts);
  int (*update)(void* context, unsigned char* out, int* out_size, const unsigned char* in, int in_size);
  int (*finish)(void* context, unsigned char* out, int* out_size);
  const void* (*aes_256_gcm)();
  const void* (*chacha20_poly1305)();
};

/* Trouble (HOPSML_UNAVAILABLE, with the remedy) where this machine has none; the next call looks again. */
const Libcrypto& libcrypto();

}  // namespace hopsml

#endif

/* Functions of OpenSSL's libcrypto, loaded at run time: nothing is linked with it, so this library loads without it. */
#ifndef HOPSML_COLLECTIVE_LIBCRYPTO_H
#define HOPSML_COLLECTIVE_LIBCRYPTO_H

namespace hopsml {

/* Functions as in its manual; contexts and ciphers are opaque. */
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

/* Throws Trouble (HOPSML_UNAVAILABLE, with the remedy) if this machine has none; the next call tries again. */
const Libcrypto& libcrypto();

}  // namespace hopsml

#endif

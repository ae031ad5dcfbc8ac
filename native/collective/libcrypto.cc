#include "libcrypto.h"

#include <dlfcn.h>

#include <string>

#include "trouble.h"

namespace hopsml {
namespace {

/* these versions are equal in all functions used here */
constexpr const char* kNames[] = {"libcrypto.so.3", "libcrypto.so.1.1"};
constexpr unsigned long long kNoCleanupAtExit = 0x00080000;               /* OPENSSL_INIT_NO_ATEXIT */

template <typename F>
bool find(void* library, const char* name, F& function) {
  function = reinterpret_cast<F>(dlsym(library, name));
  return function != nullptr;
}

bool fill(void* library, Libcrypto& found) {
  return find(library, "EVP_CIPHER_CTX_new", found.new_context) &&
         find(library, "EVP_CIPHER_CTX_free", found.free_context) &&
         find(library, "EVP_CIPHER_CTX_ctrl", found.control) && find(library, "EVP_CipherInit_ex", found.init) &&
         find(library, "EVP_CipherUpdate", found.update) && find(library, "EVP_CipherFinal_ex", found.finish) &&
         find(library, "EVP_aes_256_gcm", found.aes_256_gcm) &&
         find(library, "EVP_chacha20_poly1305", found.chacha20_poly1305);
}

/* The first user of the library decides about its cleanup: a thread may be in a call while the process ends. */
void keep_until_the_end(void* library) {
  int (*init)(unsigned long long, const void*) = nullptr;
  if (find(library, "OPENSSL_init_crypto", init)) init(kNoCleanupAtExit, nullptr);
}

/* Loads the library, which is never closed. */
Libcrypto load() {
  std::string reasons;
  for (const char* name : kNames) {
    void* library = dlopen(name, RTLD_NOW | RTLD_LOCAL);
    Libcrypto found{};
    if (library != nullptr && fill(library, found)) {
      keep_until_the_end(library);
      return found;
    }
    const char* reason = library == nullptr ? dlerror() : nullptr;
    reasons += reasons.empty() ? "" : "; ";
    reasons += reason == nullptr ? std::string(name) + " lacks functions" : reason;
  }
  throw Trouble{HOPSML_UNAVAILABLE, -1,
                "encryption needs OpenSSL's libcrypto, 1.1 or 3, which cannot be loaded here: " + reasons +
                    " (apt-get install libssl3, or dnf install openssl-libs, on every machine; or train without "
                    "encryption)"};
}

}  // namespace

const Libcrypto& libcrypto() {
  static const Libcrypto loaded = load();
  return loaded;
}

}  // namespace hopsml

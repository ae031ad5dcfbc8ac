/* Proof that a connecting peer is a member: the first bytes of a connection, which are not passed to the server behind
 * it.
 *
 * A random number and the HMAC of it and of the server's address. The secret is not sent; a recorded proof is useless,
 * as a number is accepted once and another server has another address. */
#ifndef HOPSML_SERVER_PROOF_H
#define HOPSML_SERVER_PROOF_H

#include <array>
#include <mutex>
#include <set>
#include <string>

#include "endpoint.h"

namespace hopsml {

struct Proof {
  std::array<uint8_t, 8> kind;
  std::array<uint8_t, 32> number, signature;
};

class Secret {
 public:
  explicit Secret(std::string key) : key_(std::move(key)) {}

  /* Returns a proof for a connection to `server`; none if the system has no random bytes. */
  std::optional<Proof> prove(const Endpoint& server) const;
  /* Returns whether it is a proof for `server` that is used for the first time. */
  bool is_proved(const Proof& proof, const Endpoint& server);
  /* Returns whether so many bytes can be the beginning of a proof. */
  static bool may_begin(const Proof& proof, size_t size);

 private:
  std::array<uint8_t, 32> sign(const Proof& proof, const Endpoint& server) const;

  std::string key_;
  std::mutex lock_;
  std::set<std::array<uint8_t, 32>> used_;
};

}  // namespace hopsml

#endif

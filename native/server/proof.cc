#include "proof.h"

#include <sys/random.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "../collective/sha256.h"

namespace hopsml {
namespace {

constexpr std::array<uint8_t, 8> kKind = {'H', 'O', 'P', 'S', 'M', 'L', 'S', '1'};
constexpr char kLabel[32] = "hopsml server 1: a member comes";

}  // namespace

std::optional<Proof> Secret::prove(const Endpoint& server) const {
  Proof proof{kKind, {}, {}};
  for (size_t got = 0; got < proof.number.size();) {
    ssize_t size = getrandom(proof.number.data() + got, proof.number.size() - got, 0);
    if (size < 0 && errno != EINTR) return std::nullopt;
    got += size_t(std::max<ssize_t>(size, 0));
  }
  proof.signature = sign(proof, server);
  return proof;
}

bool Secret::is_proved(const Proof& proof, const Endpoint& server) {
  if (proof.kind != kKind || !equal_in_constant_time(sign(proof, server), proof.signature.data())) return false;
  std::lock_guard<std::mutex> hold(lock_);
  return used_.insert(proof.number).second;
}

bool Secret::may_begin(const Proof& proof, size_t size) {
  return std::memcmp(&proof, kKind.data(), std::min(size, kKind.size())) == 0;
}

std::array<uint8_t, 32> Secret::sign(const Proof& proof, const Endpoint& server) const {
  struct {
    char label[32];
    std::array<uint8_t, 32> number;
    in6_addr ip;
    uint16_t port;
  } text{};
  std::memcpy(text.label, kLabel, sizeof kLabel);
  text.number = proof.number;
  text.ip = server.ip;
  text.port = htons(server.port);
  return hmac_sha256(key_.data(), key_.size(), &text, sizeof text);
}

}  // namespace hopsml

/* Handshake in which two members prove to each other that both know the secret; bytes in, bytes out, no socket.
 *
 *     connecting                                     accepting
 *     hello      generation, ranks, channel,
 *                protection, nonce                  ->
 *                                                   <-  challenge   protection, nonce; or a refusal: another generation
 *     proof      HMAC over all of this              ->
 *                                                   <-  welcome     HMAC over the same, under another label
 *
 * Both nonces are new in each handshake, so that a recorded one proves nothing. The accepting side sends nothing that
 * needs the secret before the other side has proved that it knows it, except that a refusal is signed, so that it
 * cannot be forged.
 *
 * If both sides encrypt, a key for each direction is derived from the secret and both nonces. The choice is signed as
 * well, so that an attacker in between cannot disable encryption. The secret together with a record of the traffic
 * allows decryption. */
#ifndef HOPSML_COLLECTIVE_HANDSHAKE_H
#define HOPSML_COLLECTIVE_HANDSHAKE_H

#include <string>
#include <vector>

#include "line.h"

namespace hopsml {

/* Facts that a member has before it connects to others. */
struct Membership {
  int32_t rank = 0;
  int32_t size = 1;
  uint64_t generation = 0;
  std::vector<uint8_t> secret;
  /* protection of data after the handshake; all members encrypt, or none does */
  Protection protection = Protection::kNone;
};

/* Purpose of a connection between two members. */
enum Channel : uint32_t { kControl = 0, kData = 1, kMemory = 2 };

class Handshake {
 public:
  enum class State {
    kGoing,
    kProved,
    kStale,   /* the other side has proved that it is of a later generation */
    kUnlike,  /* it has proved that it is a member, and only one of the two encrypts */
    kRefused  /* refused; see reason() */
  };

  static Handshake connecting(const Membership& own, int32_t to, Channel channel);
  static Handshake accepting(const Membership& own);

  /* Size of the next message; pass that many bytes to `read`, once. 0 if none is expected. */
  size_t wanted() const { return wanted_; }
  void read(const uint8_t* message);
  /* Bytes to be sent; the caller removes them. */
  std::string& outgoing() { return outgoing_; }
  bool has_outgoing() const { return !outgoing_.empty(); }

  State state() const { return state_; }
  const std::string& reason() const { return reason_; }
  /* Claims of the other side; not verified before the handshake has succeeded. */
  int32_t peer() const { return peer_; }
  uint32_t channel() const { return channel_; }
  /* Keys of the connection after the handshake; none: it is not encrypted. */
  std::optional<Keys> keys() const;

  static constexpr size_t kLongest = 80;

 private:
  enum class Step { kHello, kChallenge, kProof, kWelcome };

  explicit Handshake(const Membership& own) : own_(&own) {}
  void expect(Step step, size_t size);
  void refuse(State state, std::string reason);
  void read_hello(const uint8_t* message);
  void read_challenge(const uint8_t* message);
  void read_proof(const uint8_t* message);
  void read_welcome(const uint8_t* message);
  std::string signed_text(const char* label) const;
  Digest signature(const char* label) const;
  void prove();

  const Membership* own_;
  bool connecting_ = false;
  Step step_ = Step::kHello;
  State state_ = State::kGoing;
  size_t wanted_ = 0;
  std::string outgoing_, reason_;
  int32_t peer_ = -1;
  uint32_t channel_ = 0;
  uint64_t peer_generation_ = 0;
  Protection peer_protection_ = Protection::kNone;
  Digest nonce_{}, peer_nonce_{};
};

}  // namespace hopsml

#endif

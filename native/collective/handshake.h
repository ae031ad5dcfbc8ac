/* The proof of two members to each other that both know the secret; bytes in, bytes out, no socket.
 *
 *     connecting                                     accepting
 *     hello      generation, ranks, channel, nonce  ->
 *                                                   <-  challenge   nonce; or a refusal: another generation
 *     proof      HMAC over all of this              ->
 *                                                   <-  welcome     HMAC over the same, under another label
 *
 * Both nonces are new in each handshake, so that a recorded one proves nothing. Who accepts answers nothing that needs the
 * secret before the other side has proved that it knows it; only a refusal is signed, so that nobody else can send one.
 */
#ifndef HOPSML_COLLECTIVE_HANDSHAKE_H
#define HOPSML_COLLECTIVE_HANDSHAKE_H

#include <string>
#include <vector>

#include "sha256.h"

namespace hopsml {

/* What a member knows before it meets anybody. */
struct Membership {
  int32_t rank = 0;
  int32_t size = 1;
  uint64_t generation = 0;
  std::vector<uint8_t> secret;
};

/* What a connection between two members is for. */
enum Channel : uint32_t { kControl = 0, kData = 1, kMemory = 2 };

class Handshake {
 public:
  enum class State {
    kGoing,
    kProved,
    kStale,   /* the other side has proved that it is of a later generation */
    kRefused  /* reason() says why */
  };

  static Handshake connecting(const Membership& own, int32_t to, Channel channel);
  static Handshake accepting(const Membership& own);

  /* The size of the next message; that many bytes go to `read`, once. 0 when none is awaited. */
  size_t wanted() const { return wanted_; }
  void read(const uint8_t* message);
  /* What is to be sent; the caller takes it away. */
  std::string& outgoing() { return outgoing_; }
  bool has_outgoing() const { return !outgoing_.empty(); }

  State state() const { return state_; }
  const std::string& reason() const { return reason_; }
  /* Of the other side; before it has proved anything only what it says. */
  int32_t peer() const { return peer_; }
  uint32_t channel() const { return channel_; }

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
  Digest signature(const char* label) const;

  const Membership* own_;
  bool connecting_ = false;
  Step step_ = Step::kHello;
  State state_ = State::kGoing;
  size_t wanted_ = 0;
  std::string outgoing_, reason_;
  int32_t peer_ = -1;
  uint32_t channel_ = 0;
  uint64_t peer_generation_ = 0;
  Digest nonce_{}, peer_nonce_{};
};

}  // namespace hopsml

#endif

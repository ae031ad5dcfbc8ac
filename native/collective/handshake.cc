#include "handshake.h"

#include <errno.h>
#include <sys/random.h>

#include <cstring>

#include "trouble.h"

namespace hopsml {
namespace {

static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__, "messages are structures in memory order");

constexpr char kMagic[8] = {'H', 'O', 'P', 'S', 'M', 'L', 'C', '1'};

struct Hello {
  char magic[8];
  uint64_t generation;
  int32_t from, to, size;
  uint16_t channel, protection;
  uint8_t nonce[32];
};
static_assert(sizeof(Hello) == 64, "no padding");

struct Challenge {
  uint32_t refused; /* 0: a nonce follows; 1: a signed refusal */
  uint32_t protection;
  uint64_t generation;
  uint8_t nonce[32];
  uint8_t signature[32]; /* for a refusal; otherwise zeros */
};
static_assert(sizeof(Challenge) == Handshake::kLongest, "no padding");

/* Content that both sides sign, in this order for either signer. */
struct Signed {
  char label[32];
  uint64_t connecting_generation, accepting_generation;
  int32_t connecting, accepting, size;
  uint16_t channel;
  uint8_t connecting_protection, accepting_protection;
  uint8_t connecting_nonce[32], accepting_nonce[32];
};
static_assert(sizeof(Signed) == 128, "no padding");

constexpr const char* kProofLabel = "hopsml collective 1: proof";
constexpr const char* kWelcomeLabel = "hopsml collective 1: welcome";
constexpr const char* kRefusalLabel = "hopsml collective 1: refusal";
constexpr const char* kFromConnectingLabel = "hopsml collective 1: connecting";
constexpr const char* kFromAcceptingLabel = "hopsml collective 1: accepting";

Digest fresh_nonce() {
  Digest nonce;
  for (size_t got = 0; got < nonce.size();) {
    ssize_t n = getrandom(nonce.data() + got, nonce.size() - got, 0);
    if (n < 0 && errno != EINTR) throw system_trouble("random bytes");
    if (n > 0) got += size_t(n);
  }
  return nonce;
}

std::string bytes_of(const void* data, size_t size) { return std::string(static_cast<const char*>(data), size); }

}  // namespace

Handshake Handshake::connecting(const Membership& own, int32_t to, Channel channel) {
  Handshake shake(own);
  shake.connecting_ = true;
  shake.peer_ = to;
  shake.channel_ = channel;
  shake.nonce_ = fresh_nonce();
  Hello hello{};
  std::memcpy(hello.magic, kMagic, sizeof kMagic);
  hello.generation = own.generation;
  hello.from = own.rank, hello.to = to, hello.size = own.size;
  hello.channel = channel, hello.protection = uint16_t(own.protection);
  std::memcpy(hello.nonce, shake.nonce_.data(), shake.nonce_.size());
  shake.outgoing_ = bytes_of(&hello, sizeof hello);
  shake.expect(Step::kChallenge, sizeof(Challenge));
  return shake;
}

Handshake Handshake::accepting(const Membership& own) {
  Handshake shake(own);
  shake.nonce_ = fresh_nonce();
  shake.expect(Step::kHello, sizeof(Hello));
  return shake;
}

void Handshake::expect(Step step, size_t size) {
  step_ = step;
  wanted_ = size;
}

void Handshake::refuse(State state, std::string reason) {
  state_ = state;
  reason_ = std::move(reason);
  wanted_ = 0;
}

void Handshake::read(const uint8_t* message) {
  switch (step_) {
    case Step::kHello: return read_hello(message);
    case Step::kChallenge: return read_challenge(message);
    case Step::kProof: return read_proof(message);
    case Step::kWelcome: return read_welcome(message);
  }
}

std::string Handshake::signed_text(const char* label) const {
  Signed text{};
  std::strncpy(text.label, label, sizeof text.label - 1);
  text.connecting_generation = connecting_ ? own_->generation : peer_generation_;
  text.accepting_generation = connecting_ ? peer_generation_ : own_->generation;
  text.connecting = connecting_ ? own_->rank : peer_;
  text.accepting = connecting_ ? peer_ : own_->rank;
  text.size = own_->size;
  text.channel = uint16_t(channel_);
  text.connecting_protection = uint8_t(connecting_ ? own_->protection : peer_protection_);
  text.accepting_protection = uint8_t(connecting_ ? peer_protection_ : own_->protection);
  std::memcpy(text.connecting_nonce, (connecting_ ? nonce_ : peer_nonce_).data(), 32);
  std::memcpy(text.accepting_nonce, (connecting_ ? peer_nonce_ : nonce_).data(), 32);
  return bytes_of(&text, sizeof text);
}

Digest Handshake::signature(const char* label) const {
  std::string text = signed_text(label);
  return hmac_sha256(own_->secret.data(), own_->secret.size(), text.data(), text.size());
}

std::optional<Keys> Handshake::keys() const {
  if (own_->protection == Protection::kNone || channel_ == kMemory) return std::nullopt;
  const Digest &first = connecting_ ? nonce_ : peer_nonce_, &second = connecting_ ? peer_nonce_ : nonce_;
  std::string salt = bytes_of(first.data(), first.size()) + bytes_of(second.data(), second.size());
  auto key = [&](const char* label) {
    return derive_key(own_->secret.data(), own_->secret.size(), salt, signed_text(label));
  };
  Key connecting = key(kFromConnectingLabel), accepting = key(kFromAcceptingLabel);
  CipherKind kind = cipher_of(own_->protection, peer_protection_);
  return connecting_ ? Keys{kind, connecting, accepting} : Keys{kind, accepting, connecting};
}

void Handshake::read_hello(const uint8_t* message) {
  Hello hello;
  std::memcpy(&hello, message, sizeof hello);
  peer_ = hello.from;
  channel_ = hello.channel;
  peer_generation_ = hello.generation;
  peer_protection_ = Protection(hello.protection);
  std::memcpy(peer_nonce_.data(), hello.nonce, peer_nonce_.size());
  if (std::memcmp(hello.magic, kMagic, sizeof kMagic) != 0) return refuse(State::kRefused, "it speaks another language");
  Challenge challenge{};
  challenge.generation = own_->generation;
  challenge.protection = uint32_t(own_->protection);
  std::memcpy(challenge.nonce, nonce_.data(), nonce_.size());
  if (hello.generation != own_->generation) {
    challenge.refused = 1;
    Digest proof = signature(kRefusalLabel);
    std::memcpy(challenge.signature, proof.data(), proof.size());
    outgoing_ += bytes_of(&challenge, sizeof challenge);
    return refuse(State::kRefused, "it is of generation " + std::to_string(hello.generation));
  }
  bool is_member = hello.to == own_->rank && hello.size == own_->size && hello.from > own_->rank && hello.from < own_->size;
  bool is_known = hello.channel <= kMemory && hello.protection <= uint16_t(Protection::kSlowAes);
  if (!is_member || !is_known) return refuse(State::kRefused, "it is of another group");
  outgoing_ += bytes_of(&challenge, sizeof challenge);
  expect(Step::kProof, sizeof(Digest));
}

void Handshake::read_challenge(const uint8_t* message) {
  Challenge challenge;
  std::memcpy(&challenge, message, sizeof challenge);
  peer_generation_ = challenge.generation;
  peer_protection_ = Protection(challenge.protection);
  std::memcpy(peer_nonce_.data(), challenge.nonce, peer_nonce_.size());
  if (challenge.refused != 0) {
    bool later = challenge.generation > own_->generation;
    bool is_proved = equal_in_constant_time(signature(kRefusalLabel), challenge.signature);
    return refuse(later && is_proved ? State::kStale : State::kRefused,
                  "it is of generation " + std::to_string(challenge.generation));
  }
  bool is_known = challenge.protection <= uint32_t(Protection::kSlowAes);
  if (!is_known || !equal_in_constant_time(Digest{}, challenge.signature))
    return refuse(State::kRefused, "it speaks another language");
  if (challenge.generation != own_->generation) return refuse(State::kRefused, "it is of another generation");
  Digest proof = signature(kProofLabel);
  outgoing_ += bytes_of(proof.data(), proof.size());
  expect(Step::kWelcome, sizeof(Digest));
}

void Handshake::read_proof(const uint8_t* message) {
  if (!equal_in_constant_time(signature(kProofLabel), message))
    return refuse(State::kRefused, "it does not know the group's secret");
  Digest welcome = signature(kWelcomeLabel);
  outgoing_ += bytes_of(welcome.data(), welcome.size());
  prove();
}

void Handshake::read_welcome(const uint8_t* message) {
  if (!equal_in_constant_time(signature(kWelcomeLabel), message))
    return refuse(State::kRefused, "it does not know the group's secret");
  prove();
}

void Handshake::prove() {
  bool protects = own_->protection != Protection::kNone, other_protects = peer_protection_ != Protection::kNone;
  if (protects != other_protects)
    return refuse(State::kUnlike, std::string(other_protects ? "it encrypts, and this member does not"
                                                             : "it does not encrypt, and this member does") +
                                      ": give all members the same encryption");
  state_ = State::kProved;
  wanted_ = 0;
}

}  // namespace hopsml

/* One connection during the handshake, in which its two sides authenticate each other. */
#ifndef HOPSML_COLLECTIVE_CONVERSATION_H
#define HOPSML_COLLECTIVE_CONVERSATION_H

#include <array>

#include "descriptor.h"
#include "handshake.h"

namespace hopsml {

class Conversation {
 public:
  /* `deadline`: time after which the handshake is given up. */
  Conversation(Descriptor socket, Handshake handshake, double deadline);

  int descriptor() const { return socket_.get(); }
  double deadline() const { return deadline_; }
  short events() const; /* events to poll for */
  /* Reads and writes as much as possible; never a byte beyond the handshake. */
  void advance();

  Handshake::State state() const { return lost_.empty() ? handshake_.state() : Handshake::State::kRefused; }
  const std::string& reason() const { return lost_.empty() ? handshake_.reason() : lost_; }
  int32_t peer() const { return handshake_.peer(); }
  uint32_t channel() const { return handshake_.channel(); }
  /* Returns the connection after a successful handshake. */
  Connection take() { return {std::move(socket_), handshake_.keys()}; }

 private:
  void write();

  Descriptor socket_;
  Handshake handshake_;
  double deadline_;
  std::array<uint8_t, Handshake::kLongest> message_{};
  size_t held_ = 0;
  std::string lost_;
};

}  // namespace hopsml

#endif

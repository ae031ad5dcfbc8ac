#include "conversation.h"

#include <poll.h>

#include "sockets.h"
#include "trouble.h"

namespace hopsml {

Conversation::Conversation(Descriptor socket, Handshake handshake, double deadline)
    : socket_(std::move(socket)), handshake_(std::move(handshake)), deadline_(deadline) {}

short Conversation::events() const {
  return short((handshake_.wanted() > 0 ? POLLIN : 0) | (handshake_.has_outgoing() ? POLLOUT : 0));
}

void Conversation::write() {
  std::string& outgoing = handshake_.outgoing();
  while (!outgoing.empty() && lost_.empty()) {
    iovec part{outgoing.data(), outgoing.size()};
    ssize_t sent = send_some(socket_.get(), &part, 1);
    if (sent < 0) lost_ = std::string("the connection broke: ") + std::strerror(errno);
    if (sent <= 0) return;
    outgoing.erase(0, size_t(sent));
  }
}

void Conversation::advance() {
  write();
  while (lost_.empty() && handshake_.wanted() > 0) {
    iovec part{message_.data() + held_, handshake_.wanted() - held_};
    ssize_t got = receive_some(socket_.get(), &part, 1);
    if (got < 0) lost_ = errno == 0 ? "it closed the connection before it had proved itself" : std::strerror(errno);
    if (got <= 0) return;
    held_ += size_t(got);
    if (held_ == handshake_.wanted()) {
      held_ = 0;
      handshake_.read(message_.data());
      write();
    }
  }
}

}  // namespace hopsml

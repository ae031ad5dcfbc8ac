#include "forming.h"

#include <poll.h>

#include "clock.h"
#include "trouble.h"

namespace hopsml {
namespace {

constexpr double kConversationSeconds = 5; /* between members it takes a millisecond */
/* for a member whose authenticated connection broke: it may have given that up itself */
constexpr double kSecondsToReturn = 0.5;
constexpr double kLongestPause = 0.05;
constexpr size_t kVisitorsBeyondMembers = 64;
constexpr int kBacklog = 256;

Trouble unlike(int32_t peer, const std::string& reason) {
  return Trouble{HOPSML_REFUSED, peer, "rank " + std::to_string(peer) + " cannot be in one group with this member: " + reason};
}

}  // namespace

Forming::Forming(const Membership& own, Descriptor listener, const Limit& limit)
    : own_(own), listener_(std::move(listener)), limit_(limit) {}

void Forming::connect(int32_t peer, std::vector<Address> addresses, Channel channel) {
  Link link{peer, channel};
  link.addresses = std::move(addresses);
  links_.push_back(std::move(link));
}

void Forming::expect(int32_t peer, Channel channel) { links_.push_back(Link{peer, channel}); }

bool Forming::complete() const {
  for (const Link& link : links_)
    if (!link.proved) return false;
  return true;
}

void Forming::run() {
  while (!complete()) {
    if (limit_.stop.is_set()) throw ended_here();
    if (now() >= limit_.deadline) give_up();
    for (Link& link : links_)
      if (!link.proved && !link.addresses.empty()) advance(link);
    accept_visitors();
    advance_visitors();
    if (complete()) return;
    look_for_losses();
    wait();
  }
}

Connection Forming::take(int32_t peer, Channel channel) {
  for (Link& link : links_)
    if (link.peer == peer && link.channel == channel) return std::move(link.proved);
  return Connection();
}

void Forming::begin(Link& link) {
  const Address& address = link.addresses[link.tries++ % link.addresses.size()];
  Descriptor socket = begin_connect(address);
  if (!socket) return put_off(link, std::strerror(errno));
  tune(socket.get());
  link.talk.emplace_back(std::move(socket), Handshake::connecting(own_, link.peer, link.channel),
                         now() + kConversationSeconds);
  link.connecting = true;
}

void Forming::put_off(Link& link, const std::string& reason) {
  link.reason = reason;
  link.talk.clear();
  link.next_try = now() + link.pause;
  link.pause = std::min(kLongestPause, 1.5 * link.pause);
}

void Forming::advance(Link& link) {
  if (link.talk.empty() && now() >= link.next_try) begin(link);
  if (link.talk.empty()) return;
  Conversation& talk = link.talk.front();
  if (link.connecting) {
    pollfd ready{talk.descriptor(), POLLOUT, 0};
    if (poll(&ready, 1, 0) > 0) {
      int error = connect_error(talk.descriptor());
      if (error != 0) return put_off(link, std::strerror(error));
      link.connecting = false;
    }
  }
  if (!link.connecting) talk.advance();
  switch (talk.state()) {
    case Handshake::State::kGoing:
      if (now() >= talk.deadline()) put_off(link, "it answered nothing");
      return;
    case Handshake::State::kProved:
      link.proved = talk.take();
      link.lost_at = kNever;
      return;
    case Handshake::State::kStale:
      throw Trouble{HOPSML_REFUSED, link.peer,
                    "rank " + std::to_string(link.peer) + " refused this member: " + talk.reason() +
                        ", this one of generation " + std::to_string(own_.generation)};
    case Handshake::State::kUnlike: throw unlike(link.peer, talk.reason());
    case Handshake::State::kRefused:
      link.refused = true;
      return put_off(link, talk.reason());
  }
}

void Forming::accept_visitors() {
  if (!listener_) return;
  size_t most = kVisitorsBeyondMembers + 2 * size_t(own_.size);
  while (Descriptor socket = accept_one(listener_.get())) {
    tune(socket.get());
    if (visitors_.size() >= most) visitors_.pop_front();
    visitors_.emplace_back(std::move(socket), Handshake::accepting(own_), now() + kConversationSeconds);
  }
  if (errno == EMFILE || errno == ENFILE || errno == ENOMEM || errno == ENOBUFS) throw system_trouble("accepting a member");
}

void Forming::advance_visitors() {
  for (auto visitor = visitors_.begin(); visitor != visitors_.end();) {
    visitor->advance();
    bool is_over = visitor->state() != Handshake::State::kGoing || now() >= visitor->deadline();
    if (visitor->state() == Handshake::State::kProved) {
      for (Link& link : links_) /* a member that connects twice has given up its first connection */
        if (link.addresses.empty() && link.peer == visitor->peer() && link.channel == Channel(visitor->channel())) {
          link.proved = visitor->take();
          link.lost_at = kNever;
        }
    } else if (visitor->state() == Handshake::State::kUnlike) {
      throw unlike(visitor->peer(), visitor->reason());
    } else if (is_over) {
      turned_away_ = visitor->state() == Handshake::State::kGoing ? "it said nothing" : visitor->reason();
    }
    visitor = is_over ? visitors_.erase(visitor) : std::next(visitor);
  }
}

/* A member that disconnects after its authentication has a moment to connect again; then it is lost. */
void Forming::look_for_losses() {
  for (Link& link : links_) {
    pollfd event{link.proved.socket.get(), POLLRDHUP, 0};
    if (link.proved && poll(&event, 1, 0) > 0) {
      link.proved.socket.close();
      link.lost_at = now();
      put_off(link, "it ended while the group formed");
    }
    if (!link.proved && now() >= link.lost_at + kSecondsToReturn)
      throw Trouble{HOPSML_PEER_LOST, link.peer, "rank " + std::to_string(link.peer) + " ended while the group formed"};
  }
}

void Forming::wait() {
  std::vector<pollfd> events;
  double until = limit_.deadline;
  events.push_back({limit_.stop.descriptor(), POLLIN, 0});
  if (listener_) events.push_back({listener_.get(), POLLIN, 0});
  for (const Link& link : links_) {
    if (link.proved) events.push_back({link.proved.socket.get(), POLLRDHUP, 0});
    if (!link.proved) until = std::min(until, link.lost_at + kSecondsToReturn);
    if (link.proved || link.addresses.empty()) continue;
    if (link.talk.empty()) {
      until = std::min(until, link.next_try);
      continue;
    }
    const Conversation& talk = link.talk.front();
    events.push_back({talk.descriptor(), link.connecting ? short(POLLOUT) : talk.events(), 0});
    until = std::min(until, talk.deadline());
  }
  for (const Conversation& visitor : visitors_) {
    events.push_back({visitor.descriptor(), visitor.events(), 0});
    until = std::min(until, visitor.deadline());
  }
  poll(events.data(), events.size(), milliseconds_until(until));
}

void Forming::give_up() const {
  const Link* missing = nullptr;
  std::string ranks;
  for (const Link& link : links_) {
    if (link.proved || (missing != nullptr && missing->peer == link.peer)) continue;
    if (missing == nullptr || link.refused) missing = &link;
    ranks += (ranks.empty() ? "" : ", ") + std::to_string(link.peer);
  }
  std::string text = "not all members were there in time; missing: rank " + ranks;
  if (!missing->addresses.empty()) text += " (rank " + std::to_string(missing->peer) + ": " + missing->reason + ")";
  if (!turned_away_.empty()) text += "; somebody who connected was turned away: " + turned_away_;
  throw Trouble{missing->refused ? HOPSML_REFUSED : HOPSML_DEADLINE, missing->peer, text};
}

Mesh form_mesh(const Membership& own, const std::vector<std::string>& addresses, Descriptor listener, const Limit& limit) {
  Mesh mesh;
  mesh.control.resize(size_t(own.size));
  mesh.data.resize(size_t(own.size));
  if (!listener && own.rank + 1 < own.size) listener = listen_at(resolve(addresses[size_t(own.rank)]).front(), std::max(kBacklog, 2 * own.size));
  Forming forming(own, std::move(listener), limit);
  for (int32_t peer = 0; peer < own.size; peer++) {
    for (Channel channel : {kControl, kData}) {
      if (peer < own.rank) forming.connect(peer, resolve(addresses[size_t(peer)]), channel);
      if (peer > own.rank) forming.expect(peer, channel);
    }
  }
  forming.run();
  for (int32_t peer = 0; peer < own.size; peer++) {
    mesh.control[size_t(peer)] = Line(peer, forming.take(peer, kControl));
    mesh.data[size_t(peer)] = Line(peer, forming.take(peer, kData));
  }
  return mesh;
}

}  // namespace hopsml

#include "sockets.h"

#include <fcntl.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/un.h>

#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstring>

#include "trouble.h"

namespace hopsml {
namespace {

/* For an idle connection: after 15 seconds without a response of the other kernel it is broken. */
constexpr int kSecondsIdle = 5, kSecondsBetweenProbes = 2, kProbes = 5;

}  // namespace

std::vector<Address> resolve(const std::string& text) {
  size_t colon = text.rfind(':');
  if (colon == std::string::npos || colon + 1 == text.size())
    throw Trouble{HOPSML_ARGUMENT, -1, "an address is host:port, not '" + text + "'"};
  std::string host = text.substr(0, colon), port = text.substr(colon + 1);
  if (host.size() > 2 && host.front() == '[' && host.back() == ']') host = host.substr(1, host.size() - 2);
  addrinfo hints{}, *found = nullptr;
  hints.ai_socktype = SOCK_STREAM;
  hints.ai_flags = AI_NUMERICSERV;
  int error = getaddrinfo(host.c_str(), port.c_str(), &hints, &found);
  if (error != 0) throw Trouble{HOPSML_ARGUMENT, -1, "address '" + text + "': " + gai_strerror(error)};
  std::vector<Address> addresses;
  for (addrinfo* one = found; one != nullptr; one = one->ai_next) {
    Address address;
    std::memcpy(&address.storage, one->ai_addr, one->ai_addrlen);
    address.size = one->ai_addrlen;
    addresses.push_back(address);
  }
  freeaddrinfo(found);
  return addresses;
}

Address abstract_address(const std::string& name) {
  sockaddr_un unix_address{};
  unix_address.sun_family = AF_UNIX;
  size_t size = std::min(name.size(), sizeof unix_address.sun_path - 1);
  std::memcpy(unix_address.sun_path + 1, name.data(), size);
  Address address;
  std::memcpy(&address.storage, &unix_address, sizeof unix_address);
  address.size = socklen_t(offsetof(sockaddr_un, sun_path) + 1 + size);
  return address;
}

namespace {

Descriptor open_socket(const Address& address) {
  return Descriptor(socket(address.storage.ss_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
}

bool would_wait(int error) { return error == EAGAIN || error == EWOULDBLOCK; }

}  // namespace

Descriptor listen_at(const Address& address, int backlog) {
  Descriptor listener = open_socket(address);
  int one = 1;
  if (!listener) throw system_trouble("a listening socket");
  setsockopt(listener.get(), SOL_SOCKET, SO_REUSEADDR, &one, sizeof one);
  if (bind(listener.get(), reinterpret_cast<const sockaddr*>(&address.storage), address.size) != 0 ||
      listen(listener.get(), backlog) != 0)
    throw system_trouble("listening on this member's address");
  return listener;
}

Descriptor begin_connect(const Address& address) {
  Descriptor made = open_socket(address);
  if (!made) return made;
  int result = connect(made.get(), reinterpret_cast<const sockaddr*>(&address.storage), address.size);
  if (result != 0 && errno != EINPROGRESS && errno != EINTR) {
    int error = errno;
    made.close();
    errno = error;
  }
  return made;
}

int connect_error(int socket) {
  int error = 0;
  socklen_t size = sizeof error;
  return getsockopt(socket, SOL_SOCKET, SO_ERROR, &error, &size) == 0 ? error : errno;
}

Descriptor accept_one(int listener) {
  int number;
  do {
    number = accept4(listener, nullptr, nullptr, SOCK_NONBLOCK | SOCK_CLOEXEC);
  } while (number < 0 && (errno == EINTR || errno == ECONNABORTED));
  return Descriptor(number);
}

void make_ours(int socket) {
  fcntl(socket, F_SETFL, fcntl(socket, F_GETFL) | O_NONBLOCK);
  fcntl(socket, F_SETFD, FD_CLOEXEC);
}

void tune(int socket) {
  auto set = [socket](int level, int option, int value) { setsockopt(socket, level, option, &value, sizeof value); };
  /* this and the other options have no meaning for a unix socket, which refuses them */
  set(IPPROTO_TCP, TCP_NODELAY, 1);
  set(SOL_SOCKET, SO_KEEPALIVE, 1);
  set(IPPROTO_TCP, TCP_KEEPIDLE, kSecondsIdle);
  set(IPPROTO_TCP, TCP_KEEPINTVL, kSecondsBetweenProbes);
  set(IPPROTO_TCP, TCP_KEEPCNT, kProbes);
}

void notice_silence(int socket, double seconds) {
  auto set = [socket](int option, int value) { setsockopt(socket, IPPROTO_TCP, option, &value, sizeof value); };
  set(TCP_KEEPIDLE, int(std::ceil(seconds / 3)));
  set(TCP_KEEPINTVL, int(std::ceil(seconds / 6)));
  set(TCP_USER_TIMEOUT, int(std::min(1e3 * seconds, 1e9)));
}

namespace {

std::atomic<uint64_t*> counters{nullptr};

/* Another process reads the counters, and several threads add to them. */
void add_bytes(int place, ssize_t bytes) {
  uint64_t* const known = counters.load(std::memory_order_acquire);
  if (known && bytes > 0) __atomic_fetch_add(known + place, uint64_t(bytes), __ATOMIC_RELAXED);
}

}  // namespace

void count_into(uint64_t* given) { counters.store(given, std::memory_order_release); }

ssize_t send_some(int socket, const iovec* parts, int count) {
  msghdr message{};
  message.msg_iov = const_cast<iovec*>(parts);
  message.msg_iovlen = size_t(count);
  ssize_t sent;
  do {
    sent = sendmsg(socket, &message, MSG_NOSIGNAL | MSG_DONTWAIT);
  } while (sent < 0 && errno == EINTR);
  add_bytes(1, sent);
  return sent < 0 && would_wait(errno) ? 0 : sent;
}

ssize_t receive_some(int socket, const iovec* parts, int count) {
  msghdr message{};
  message.msg_iov = const_cast<iovec*>(parts);
  message.msg_iovlen = size_t(count);
  ssize_t got;
  do {
    got = recvmsg(socket, &message, MSG_DONTWAIT);
  } while (got < 0 && errno == EINTR);
  add_bytes(0, got);
  if (got == 0) {
    errno = 0;
    return -1;
  }
  return got < 0 && would_wait(errno) ? 0 : got;
}

}  // namespace hopsml

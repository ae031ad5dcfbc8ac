#include "calls.h"

#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cerrno>
#include <cstring>

namespace hopsml {
namespace {

std::atomic<const Members*> in_force{nullptr};

const Members* members() { return in_force.load(std::memory_order_acquire); }

const sockaddr* plain(const sockaddr_storage& address) { return reinterpret_cast<const sockaddr*>(&address); }

int family_of(int socket) {
  int family = AF_UNSPEC;
  socklen_t size = sizeof family;
  return getsockopt(socket, SOL_SOCKET, SO_DOMAIN, &family, &size) == 0 ? family : AF_UNSPEC;
}

std::optional<Endpoint> peer_of(int socket) {
  sockaddr_storage address{};
  socklen_t size = sizeof address;
  return getpeername(socket, reinterpret_cast<sockaddr*>(&address), &size) == 0 ? endpoint_of(plain(address), size)
                                                                                : std::nullopt;
}

/* -- state of the library's sockets, by number */

enum Phase : uint8_t {
  kOrdinary,
  kConnecting, /* to a member: a proof will be sent */
  kUnproved    /* from a peer of which nothing has been read */
};
constexpr size_t kMostSockets = 1 << 20; /* unused pages take no memory */
std::array<std::atomic<Phase>, kMostSockets> phases{};

void set_phase(int socket, Phase phase) {
  if (socket >= 0 && size_t(socket) < kMostSockets) phases[size_t(socket)].store(phase, std::memory_order_release);
}

Phase phase_of(int socket) {
  return socket >= 0 && size_t(socket) < kMostSockets ? phases[size_t(socket)].load(std::memory_order_acquire) : kOrdinary;
}

/* -- the worker's own address */

int guarded_socket(int family, int kind, int protocol) {
  int made = socket(family, kind, protocol);
  set_phase(made, kOrdinary);
  return made;
}

int guarded_bind(int socket, const sockaddr* address, socklen_t size) {
  const Members* now = members();
  auto asked = endpoint_of(address, size);
  if (now != nullptr && asked && asked->port == now->own.port && is_wildcard(asked->ip)) {
    sockaddr_storage own;
    socklen_t own_size = write_address(now->own, family_of(socket), &own);
    if (own_size != 0 && bind(socket, plain(own), own_size) == 0) return 0;
    /* Not an address of this machine, or of this socket: members reach it at another one. */
    if (own_size != 0 && errno != EADDRNOTAVAIL && errno != EINVAL) return -1;
  }
  return bind(socket, address, size);
}

/* -- incoming connections */

void refuse(int socket) {
  linger at_once{1, 0}; /* the peer sees a reset, and no state remains */
  setsockopt(socket, SOL_SOCKET, SO_LINGER, &at_once, sizeof at_once);
  close(socket);
}

/* Returns whether the server may have the connection; a peer that has to prove something may be refused when it is read
 * from. */
bool takes(const Members& now, int accepted, const std::optional<Endpoint>& peer) {
  auto here = own_end(accepted);
  if (!peer || !here || here->port != now.own.port) return true;
  if (now.secret == nullptr) return now.admit(*peer, *here);
  set_phase(accepted, kUnproved);
  return size_t(accepted) < kMostSockets;
}

template <typename Accept>
int accept_member(Accept accept_one, sockaddr* address, socklen_t* size) {
  for (;;) {
    sockaddr_storage from{};
    socklen_t from_size = sizeof from;
    int accepted = accept_one(reinterpret_cast<sockaddr*>(&from), &from_size);
    if (accepted < 0) return accepted;
    set_phase(accepted, kOrdinary);
    const Members* now = members();
    if (now != nullptr && !takes(*now, accepted, endpoint_of(plain(from), from_size))) {
      refuse(accepted);
      continue;
    }
    if (address != nullptr && size != nullptr) {
      std::memcpy(address, &from, std::min(*size, from_size));
      *size = from_size;
    }
    return accepted;
  }
}

int guarded_accept(int socket, sockaddr* address, socklen_t* size) {
  return accept_member([=](sockaddr* from, socklen_t* length) { return accept(socket, from, length); }, address, size);
}

int guarded_accept4(int socket, sockaddr* address, socklen_t* size, int flags) {
  return accept_member([=](sockaddr* from, socklen_t* length) { return accept4(socket, from, length, flags); }, address,
                       size);
}

/* Returns 0: proved, and removed from the input; otherwise an errno, EAGAIN while the rest of a proof may arrive. */
int read_proof(const Members& now, int socket) {
  Proof proof;
  ssize_t size = recv(socket, &proof, sizeof proof, MSG_PEEK | MSG_DONTWAIT);
  if (size < 0) return errno;
  if (size == 0) return ECONNRESET; /* the peer only checked whether the port is open */
  bool is_whole = size == ssize_t(sizeof proof), may_be = Secret::may_begin(proof, size_t(size));
  if (may_be && !is_whole) return EAGAIN;
  if (is_whole && now.secret->is_proved(proof, now.own) &&
      recv(socket, &proof, sizeof proof, MSG_DONTWAIT) == ssize_t(sizeof proof))
    return 0;
  if (auto peer = peer_of(socket)) tell_refused(*peer, "it does not prove to be a member of the group");
  return ECONNRESET;
}

ssize_t guarded_recvmsg(int socket, msghdr* message, int flags) {
  const Members* now = members();
  if (phase_of(socket) == kUnproved && now != nullptr && now->secret != nullptr) {
    int error = read_proof(*now, socket);
    if (error == ECONNRESET) shutdown(socket, SHUT_RDWR);
    if (error != 0) {
      errno = error;
      return -1;
    }
    set_phase(socket, kOrdinary);
  }
  return recvmsg(socket, message, flags);
}

/* -- outgoing connections to a member */

/* On a machine with several addresses, this process uses the one under which the others know it. */
void show_own_address(const Members& now, int socket) {
  auto bound = own_end(socket);
  sockaddr_storage own;
  socklen_t size = write_address({now.own.ip, 0}, family_of(socket), &own);
  if (!bound || bound->port != 0 || size == 0) return;
  int later = 1; /* the port is chosen when it connects, among all that are free towards this member */
  setsockopt(socket, IPPROTO_IP, IP_BIND_ADDRESS_NO_PORT, &later, sizeof later);
  (void)!bind(socket, plain(own), size); /* on failure the kernel chooses */
}

bool send_proof(const Members& now, int socket, const Endpoint& server) {
  auto proof = now.secret->prove(server);
  /* It is the first data on the socket, so the kernel accepts all of it. */
  return proof && send(socket, &*proof, sizeof *proof, MSG_NOSIGNAL | MSG_DONTWAIT) == ssize_t(sizeof *proof);
}

int guarded_connect(int socket, const sockaddr* address, socklen_t size) {
  const Members* now = members();
  auto target = endpoint_of(address, size);
  if (now == nullptr || !target || !now->have(*target)) return connect(socket, address, size);
  if (!is_loopback(target->ip) && !is_loopback(now->own.ip)) show_own_address(*now, socket);
  if (now->secret == nullptr) return connect(socket, address, size);
  set_phase(socket, kConnecting);
  int result = connect(socket, address, size);
  if (result == 0) {
    set_phase(socket, kOrdinary);
    if (send_proof(*now, socket, *target)) return 0;
    errno = ECONNRESET;
    return -1;
  }
  return result;
}

/* The library queries a socket's error when it is connected, or has failed. */
int guarded_getsockopt(int socket, int level, int option, void* value, socklen_t* size) {
  int result = getsockopt(socket, level, option, value, size);
  if (level != SOL_SOCKET || option != SO_ERROR || phase_of(socket) != kConnecting || result != 0) return result;
  int error = 0;
  if (*size == sizeof error) std::memcpy(&error, value, sizeof error);
  const Members* now = members();
  auto server = peer_of(socket);
  if (error != 0 || now == nullptr || !server) return result;
  set_phase(socket, kOrdinary);
  if (!send_proof(*now, socket, *server)) {
    error = ECONNRESET;
    std::memcpy(value, &error, sizeof error);
  }
  return result;
}

}  // namespace

void put_in_force(const Members* members) { in_force.store(members, std::memory_order_release); }

const std::vector<Replacement>& replacements() {
  static const std::vector<Replacement> all = {
      {"bind", reinterpret_cast<void*>(guarded_bind), true},
      {"accept", reinterpret_cast<void*>(guarded_accept), false}, /* a library calls either this one or the next */
      {"accept4", reinterpret_cast<void*>(guarded_accept4), false},
      {"connect", reinterpret_cast<void*>(guarded_connect), true},
      {"socket", reinterpret_cast<void*>(guarded_socket), true},
      {"recvmsg", reinterpret_cast<void*>(guarded_recvmsg), true},
      {"getsockopt", reinterpret_cast<void*>(guarded_getsockopt), true},
  };
  return all;
}

}  // namespace hopsml

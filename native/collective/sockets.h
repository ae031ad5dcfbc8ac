/* Sockets: all of them are non-blocking, closed by exec, and never raise SIGPIPE. */
#ifndef HOPSML_COLLECTIVE_SOCKETS_H
#define HOPSML_COLLECTIVE_SOCKETS_H

#include <sys/socket.h>
#include <sys/uio.h>

#include <cstdint>
#include <string>
#include <vector>

#include "descriptor.h"

namespace hopsml {

struct Address {
  sockaddr_storage storage{};
  socklen_t size = 0;
};

/* Returns the addresses of "host:port" or "[host]:port". Throws Trouble if it is invalid or the name is unknown. */
std::vector<Address> resolve(const std::string& text);
/* Returns an address that only processes of this machine (of one network namespace) can reach, without a file. */
Address abstract_address(const std::string& name);

Descriptor listen_at(const Address& address, int backlog);
/* Begins to connect. Returns none and sets errno if that fails at once. */
Descriptor begin_connect(const Address& address);
/* Returns the outcome of a connect: 0 or an errno. */
int connect_error(int socket);
/* Accepts the next connection; returns none if no peer waits. */
Descriptor accept_one(int listener);
/* Sets the same options on a socket that other code has opened. */
void make_ours(int socket);
/* Small messages are sent at once, and the loss of a machine is noticed within seconds. */
void tune(int socket);
/* After so many seconds without a response of the other side's kernel, and at most a sixth more (at least a second),
 * the connection is broken, whether data is in flight or not. A stopped process does no harm, as its kernel responds,
 * but a process that leaves data unread for so long does: not for connections that carry data. */
void notice_silence(int socket, double seconds);

/* Returns the bytes that were sent or received. 0: would block. -1: the other side has disconnected (errno; 0 for an
 * orderly end). */
/* Counts the bytes of both from now on, in memory of the caller: received, then sent; none: they are not counted. */
void count_into(uint64_t* counters);
ssize_t send_some(int socket, const iovec* parts, int count);
ssize_t receive_some(int socket, const iovec* parts, int count);

}  // namespace hopsml

#endif

/* Sockets: all of them non-blocking, closed by exec, and never a SIGPIPE. */
#ifndef HOPSML_COLLECTIVE_SOCKETS_H
#define HOPSML_COLLECTIVE_SOCKETS_H

#include <sys/socket.h>
#include <sys/uio.h>

#include <string>
#include <vector>

#include "descriptor.h"

namespace hopsml {

struct Address {
  sockaddr_storage storage{};
  socklen_t size = 0;
};

/* The addresses of "host:port" or "[host]:port"; Trouble when it is none or the name is unknown. */
std::vector<Address> resolve(const std::string& text);
/* An address that only processes of this machine (of one network namespace) can reach, and that no file stands for. */
Address abstract_address(const std::string& name);

Descriptor listen_at(const Address& address, int backlog);
/* Begins to connect. None and errno when that fails at once. */
Descriptor begin_connect(const Address& address);
/* What became of it: 0 or an errno. */
int connect_error(int socket);
/* The next who connects; none when nobody waits. */
Descriptor accept_one(int listener);
/* For a socket that somebody else has opened. */
void make_ours(int socket);
/* Small messages go at once, and a machine that has gone without a word is noticed within seconds. */
void tune(int socket);
/* After so many seconds without an answer of the other side's kernel, and a sixth more at most (a second at least), the
 * connection is broken, whether something is under way on it or not. A process that is stopped does no harm, as its kernel
 * answers, but one that leaves data unread for so long does: not for connections on which data goes. */
void notice_silence(int socket, double seconds);

/* Bytes that went or came. 0: would wait. -1: the other side is gone (errno; 0 for an orderly end). */
ssize_t send_some(int socket, const iovec* parts, int count);
ssize_t receive_some(int socket, const iovec* parts, int count);

}  // namespace hopsml

#endif

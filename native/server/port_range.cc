#include "port_range.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/random.h>
#include <sys/socket.h>

#include <atomic>
#include <cerrno>
#include <cstring>

#include "function_table.h"

namespace hopsml {
namespace {

std::atomic<uint32_t> range{0}; /* first and last, 16 bits each; 0: any port */

bool listens_anywhere(const sockaddr_storage& address) {
  if (address.ss_family == AF_INET) {
    const auto& ip4 = reinterpret_cast<const sockaddr_in&>(address);
    return ip4.sin_port == 0 && (ntohl(ip4.sin_addr.s_addr) >> 24) != 127;
  }
  const auto& ip6 = reinterpret_cast<const sockaddr_in6&>(address);
  return address.ss_family == AF_INET6 && ip6.sin6_port == 0 && !IN6_IS_ADDR_LOOPBACK(&ip6.sin6_addr);
}

bool is_tcp(int socket) {
  int kind = 0;
  socklen_t size = sizeof kind;
  return getsockopt(socket, SOL_SOCKET, SO_TYPE, &kind, &size) == 0 && kind == SOCK_STREAM;
}

void set_port(sockaddr_storage* address, uint32_t port) {
  auto number = htons(uint16_t(port));
  if (address->ss_family == AF_INET)
    reinterpret_cast<sockaddr_in*>(address)->sin_port = number;
  else
    reinterpret_cast<sockaddr_in6*>(address)->sin6_port = number;
}

uint32_t somewhere_below(uint32_t count) {
  uint32_t number = 0;
  (void)!getrandom(&number, sizeof number, GRND_NONBLOCK);
  return number % count;
}

int bind_within(int socket, const sockaddr* address, socklen_t size) {
  uint32_t now = range.load(std::memory_order_acquire), first = now >> 16, last = now & 0xffff;
  sockaddr_storage wanted{};
  if (now == 0 || address == nullptr || size > sizeof wanted || size < sizeof(sockaddr_in)) return bind(socket, address, size);
  std::memcpy(&wanted, address, size);
  if (!listens_anywhere(wanted) || !is_tcp(socket)) return bind(socket, address, size);
  uint32_t count = last - first + 1, begin = somewhere_below(count);
  for (uint32_t i = 0; i < count; i++) {
    set_port(&wanted, first + (begin + i) % count);
    if (bind(socket, reinterpret_cast<const sockaddr*>(&wanted), size) == 0) return 0;
    if (errno != EADDRINUSE && errno != EACCES) return -1;
  }
  errno = EADDRINUSE;
  return -1;
}

}  // namespace
}  // namespace hopsml

int32_t hopsml_bind_within(const char* libraries, int32_t first, int32_t last) {
  using namespace hopsml;
  if (first < 1 || last < first || last > 65535) return -1;
  range.store(uint32_t(first) << 16 | uint32_t(last), std::memory_order_release);
  static const std::vector<Replacement> all = {{"bind", reinterpret_cast<void*>(bind_within), true}};
  return replace_functions(libraries, all);
}

/* Addresses of IPv4 and IPv6 in one form: IPv4 as IPv4-mapped IPv6. */
#ifndef HOPSML_SERVER_ENDPOINT_H
#define HOPSML_SERVER_ENDPOINT_H

#include <netinet/in.h>
#include <sys/socket.h>

#include <cstdint>
#include <optional>
#include <string>

namespace hopsml {

struct Endpoint {
  in6_addr ip{};
  uint16_t port = 0;
};

bool same_ip(const in6_addr& one, const in6_addr& other);
bool same(const Endpoint& one, const Endpoint& other);
bool is_ipv4(const in6_addr& ip);
/* Address of every interface. */
bool is_wildcard(const in6_addr& ip);
bool is_loopback(const in6_addr& ip);
std::string text_of(const in6_addr& ip);

/* Parses "host:port" or "[host]:port" with numbers; none for anything else. */
std::optional<Endpoint> parse_endpoint(const std::string& text);
/* Returns none if it is not an internet address. */
std::optional<Endpoint> endpoint_of(const sockaddr* address, socklen_t size);
std::optional<Endpoint> own_end(int socket);
/* Writes the address for a socket of this family; returns its size, 0 if such a socket cannot have it. */
socklen_t write_address(const Endpoint& endpoint, int family, sockaddr_storage* address);

}  // namespace hopsml

#endif

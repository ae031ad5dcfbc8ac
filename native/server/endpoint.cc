#include "endpoint.h"

#include <arpa/inet.h>

#include <cstdlib>
#include <cstring>

namespace hopsml {
namespace {

in6_addr mapped(const in_addr& ipv4) {
  in6_addr ip{};
  ip.s6_addr[10] = ip.s6_addr[11] = 0xff;
  std::memcpy(ip.s6_addr + 12, &ipv4, sizeof ipv4);
  return ip;
}

in_addr unmapped(const in6_addr& ip) {
  in_addr ipv4{};
  std::memcpy(&ipv4, ip.s6_addr + 12, sizeof ipv4);
  return ipv4;
}

}  // namespace

bool same_ip(const in6_addr& one, const in6_addr& other) { return std::memcmp(&one, &other, sizeof one) == 0; }

bool same(const Endpoint& one, const Endpoint& other) { return one.port == other.port && same_ip(one.ip, other.ip); }

bool is_ipv4(const in6_addr& ip) { return IN6_IS_ADDR_V4MAPPED(&ip); }

bool is_wildcard(const in6_addr& ip) {
  return is_ipv4(ip) ? unmapped(ip).s_addr == htonl(INADDR_ANY) : bool(IN6_IS_ADDR_UNSPECIFIED(&ip));
}

bool is_loopback(const in6_addr& ip) { return is_ipv4(ip) ? ip.s6_addr[12] == 127 : bool(IN6_IS_ADDR_LOOPBACK(&ip)); }

std::string text_of(const in6_addr& ip) {
  char text[INET6_ADDRSTRLEN] = "";
  if (is_ipv4(ip))
    inet_ntop(AF_INET, ip.s6_addr + 12, text, sizeof text);
  else
    inet_ntop(AF_INET6, &ip, text, sizeof text);
  return text;
}

std::optional<Endpoint> parse_endpoint(const std::string& text) {
  size_t colon = text.rfind(':');
  if (colon == std::string::npos) return std::nullopt;
  std::string host = text.substr(0, colon), port = text.substr(colon + 1);
  char* end = nullptr;
  unsigned long number = std::strtoul(port.c_str(), &end, 10);
  if (port.empty() || *end != '\0' || number == 0 || number > 65535) return std::nullopt;
  if (host.size() > 2 && host.front() == '[' && host.back() == ']') host = host.substr(1, host.size() - 2);
  Endpoint endpoint;
  endpoint.port = uint16_t(number);
  in_addr ipv4{};
  if (inet_pton(AF_INET, host.c_str(), &ipv4) == 1)
    endpoint.ip = mapped(ipv4);
  else if (inet_pton(AF_INET6, host.c_str(), &endpoint.ip) != 1)
    return std::nullopt;
  return endpoint;
}

std::optional<Endpoint> endpoint_of(const sockaddr* address, socklen_t size) {
  if (address == nullptr || size < sizeof address->sa_family) return std::nullopt;
  if (address->sa_family == AF_INET && size >= sizeof(sockaddr_in)) {
    sockaddr_in ipv4;
    std::memcpy(&ipv4, address, sizeof ipv4);
    return Endpoint{mapped(ipv4.sin_addr), ntohs(ipv4.sin_port)};
  }
  if (address->sa_family == AF_INET6 && size >= sizeof(sockaddr_in6)) {
    sockaddr_in6 ipv6;
    std::memcpy(&ipv6, address, sizeof ipv6);
    return Endpoint{ipv6.sin6_addr, ntohs(ipv6.sin6_port)};
  }
  return std::nullopt;
}

std::optional<Endpoint> own_end(int socket) {
  sockaddr_storage address{};
  socklen_t size = sizeof address;
  auto* plain = reinterpret_cast<sockaddr*>(&address);
  return getsockname(socket, plain, &size) == 0 ? endpoint_of(plain, size) : std::nullopt;
}

socklen_t write_address(const Endpoint& endpoint, int family, sockaddr_storage* address) {
  *address = {};
  if (family == AF_INET6) {
    sockaddr_in6 ipv6{};
    ipv6.sin6_family = AF_INET6;
    ipv6.sin6_port = htons(endpoint.port);
    ipv6.sin6_addr = endpoint.ip;
    std::memcpy(address, &ipv6, sizeof ipv6);
    return sizeof ipv6;
  }
  if (family != AF_INET || !is_ipv4(endpoint.ip)) return 0;
  sockaddr_in ipv4{};
  ipv4.sin_family = AF_INET;
  ipv4.sin_port = htons(endpoint.port);
  ipv4.sin_addr = unmapped(endpoint.ip);
  std::memcpy(address, &ipv4, sizeof ipv4);
  return sizeof ipv4;
}

}  // namespace hopsml

#include "origin.h"

#include <ifaddrs.h>
#include <linux/inet_diag.h>
#include <linux/netlink.h>
#include <linux/sock_diag.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstring>
#include <fstream>
#include <sstream>

namespace hopsml {
namespace {

constexpr int kEstablished = 1, kListening = 10; /* as in the kernel's net/tcp_states.h */

/* The socket at the other end, if it is on this machine. */
struct Found {
  bool answered = false; /* the kernel */
  bool is_there = false;
  int state = 0;
  uid_t user = 0;
  uint32_t inode = 0; /* 0: no process has it any more; the user then has no meaning */
};

void write_ip(const in6_addr& ip, bool as_ipv4, __be32* words) {
  std::memcpy(words, ip.s6_addr + (as_ipv4 ? 12 : 0), as_ipv4 ? 4 : 16);
}

/* Queries one connection: the time does not depend on the number of connections. */
Found ask_kernel(const Endpoint& peer, const Endpoint& here) {
  struct {
    nlmsghdr head;
    inet_diag_req_v2 body;
  } question{};
  bool as_ipv4 = is_ipv4(peer.ip);
  question.head.nlmsg_len = sizeof question;
  question.head.nlmsg_type = SOCK_DIAG_BY_FAMILY;
  question.head.nlmsg_flags = NLM_F_REQUEST;
  question.body.sdiag_family = as_ipv4 ? AF_INET : AF_INET6;
  question.body.sdiag_protocol = IPPROTO_TCP;
  question.body.id.idiag_sport = htons(peer.port);
  question.body.id.idiag_dport = htons(here.port);
  write_ip(peer.ip, as_ipv4, question.body.id.idiag_src);
  write_ip(here.ip, as_ipv4, question.body.id.idiag_dst);
  question.body.id.idiag_cookie[0] = question.body.id.idiag_cookie[1] = INET_DIAG_NOCOOKIE;

  Found found;
  int asked = socket(AF_NETLINK, SOCK_RAW | SOCK_CLOEXEC, NETLINK_SOCK_DIAG);
  if (asked < 0) return found;
  alignas(nlmsghdr) char answer[8192];
  ssize_t size = -1;
  if (send(asked, &question, sizeof question, 0) == ssize_t(sizeof question))
    size = recv(asked, answer, sizeof answer, MSG_DONTWAIT); /* the response was written before send returned */
  close(asked);
  const auto* head = reinterpret_cast<const nlmsghdr*>(answer);
  if (size < 0 || !NLMSG_OK(head, size_t(size))) return found;
  if (head->nlmsg_type == NLMSG_ERROR) {
    found.answered = reinterpret_cast<const nlmsgerr*>(NLMSG_DATA(head))->error == -ENOENT;
    return found;
  }
  if (head->nlmsg_type != SOCK_DIAG_BY_FAMILY || head->nlmsg_len < NLMSG_LENGTH(sizeof(inet_diag_msg))) return found;
  const auto* body = reinterpret_cast<const inet_diag_msg*>(NLMSG_DATA(head));
  /* If there is no such connection, the listener on that port is returned. */
  return {true, body->idiag_state != kListening, body->idiag_state, body->idiag_uid, body->idiag_inode};
}

/* Parses an address as in /proc/net/tcp and tcp6: words of 32 bits in this machine's byte order. */
bool parse_row_end(const std::string& text, Endpoint* end) {
  size_t colon = text.find(':');
  if (colon != 8 && colon != 32) return false;
  unsigned port = 0;
  if (std::sscanf(text.c_str() + colon + 1, "%x", &port) != 1) return false;
  in6_addr ip{};
  if (colon == 8) ip.s6_addr[10] = ip.s6_addr[11] = 0xff;
  for (size_t word = 0; word < colon / 8; word++) {
    auto value = uint32_t(std::strtoul(text.substr(word * 8, 8).c_str(), nullptr, 16));
    std::memcpy(ip.s6_addr + (colon == 8 ? 12 : word * 4), &value, sizeof value);
  }
  *end = {ip, uint16_t(port)};
  return true;
}

/* For containers that may not query the kernel. */
Found read_tables(const Endpoint& peer, const Endpoint& here) {
  Found found;
  for (const char* path : {"/proc/self/net/tcp", "/proc/self/net/tcp6"}) {
    std::ifstream table(path);
    std::string line, number, local, remote, state, queues, timer, retries, timeout;
    if (std::getline(table, line)) found.answered = true;
    while (std::getline(table, line)) {
      std::istringstream row(line);
      Endpoint from, to;
      unsigned long user = 0, inode = 0;
      row >> number >> local >> remote >> state >> queues >> timer >> retries >> user >> timeout >> inode;
      if (row.fail() || !parse_row_end(local, &from) || !parse_row_end(remote, &to)) continue;
      if (same(from, peer) && same(to, here))
        return {true, true, int(std::strtol(state.c_str(), nullptr, 16)), uid_t(user), uint32_t(inode)};
    }
  }
  return found;
}

bool is_of_this_machine(const in6_addr& ip, const in6_addr& here) {
  if (is_loopback(ip) || same_ip(ip, here)) return true;
  ifaddrs* interfaces = nullptr;
  if (getifaddrs(&interfaces) != 0) return false;
  bool is_here = false;
  for (const ifaddrs* one = interfaces; one != nullptr && !is_here; one = one->ifa_next) {
    if (one->ifa_addr == nullptr) continue;
    socklen_t size = one->ifa_addr->sa_family == AF_INET6 ? sizeof(sockaddr_in6) : sizeof(sockaddr_in);
    auto own = endpoint_of(one->ifa_addr, size);
    is_here = own && same_ip(own->ip, ip);
  }
  freeifaddrs(interfaces);
  return is_here;
}

}  // namespace

Origin origin_of(const Endpoint& peer, const Endpoint& here) {
  bool is_here = is_of_this_machine(peer.ip, here.ip);
  Found found = ask_kernel(peer, here);
  /* "No such connection" is also returned if the kernel cannot answer such queries. */
  if (!found.is_there && (is_here || !found.answered)) found = read_tables(peer, here);
  if (found.is_there) {
    /* A closed connection has no user: the kernel then reports root, whichever user it was. */
    if (found.state != kEstablished || found.inode == 0) return Origin::kGone;
    return found.user == geteuid() ? Origin::kOwnUser : Origin::kOtherUser;
  }
  if (!is_here) return Origin::kElsewhere;
  return found.answered ? Origin::kHidden : Origin::kUnknown;
}

}  // namespace hopsml

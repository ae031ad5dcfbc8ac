#include "members.h"

#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstdio>

#include "origin.h"

namespace hopsml {
namespace {

constexpr int kMostLines = 8; /* repeated attempts must not fill a log */
std::atomic<int> lines{0};

}  // namespace

bool Members::have(const in6_addr& ip) const {
  return std::any_of(all.begin(), all.end(), [&](const Endpoint& one) { return same_ip(one.ip, ip); });
}

bool Members::have(const Endpoint& endpoint) const {
  return std::any_of(all.begin(), all.end(), [&](const Endpoint& one) { return same(one, endpoint); });
}

bool Members::admit(const Endpoint& peer, const Endpoint& here) const {
  const char* why = nullptr;
  switch (origin_of(peer, here)) {
    case Origin::kOwnUser: return true;
    case Origin::kGone: return false;
    case Origin::kOtherUser: why = "another user of this machine"; break;
    case Origin::kHidden: why = "an address of this machine, but no process that can be seen from here"; break;
    case Origin::kElsewhere:
    case Origin::kUnknown:
      if (have(peer.ip)) return true;
      why = "no member of the group has this address";
  }
  tell_refused(peer, why);
  return false;
}

void tell_refused(const Endpoint& peer, const char* why) {
  int line = lines.fetch_add(1);
  if (line >= kMostLines) return;
  char text[300];
  int size = std::snprintf(text, sizeof text,
                           "hopsml: a connection to this worker's server from %s, port %u, was refused: %s "
                           "(docs/security.md)%s\n",
                           text_of(peer.ip).c_str(), unsigned(peer.port), why,
                           line + 1 == kMostLines ? "; further ones are not told" : "");
  if (write(STDERR_FILENO, text, size_t(size)) < 0) return; /* then the log has no reader */
}

}  // namespace hopsml

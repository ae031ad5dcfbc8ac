/* Members of the group, and the admission of connections. */
#ifndef HOPSML_SERVER_MEMBERS_H
#define HOPSML_SERVER_MEMBERS_H

#include <memory>
#include <vector>

#include "endpoint.h"
#include "proof.h"

namespace hopsml {

struct Members {
  std::vector<Endpoint> all;
  Endpoint own;
  std::unique_ptr<Secret> secret; /* none: members are identified by their address */

  bool have(const in6_addr& ip) const;
  bool have(const Endpoint& endpoint) const;
  /* Returns whether a connection from `peer` to `here`, on this machine, is admitted because of its origin. */
  bool admit(const Endpoint& peer, const Endpoint& here) const;
};

/* Writes a line to the process' log, up to a limited number. */
void tell_refused(const Endpoint& peer, const char* why);

}  // namespace hopsml

#endif

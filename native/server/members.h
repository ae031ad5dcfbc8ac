/* Who the members of the group are, and who is let in. */
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
  std::unique_ptr<Secret> secret; /* none: members are known by where they come from */

  bool have(const in6_addr& ip) const;
  bool have(const Endpoint& endpoint) const;
  /* Whether a connection from `peer` to `here`, which is of this machine, is let in for where it comes from. */
  bool admit(const Endpoint& peer, const Endpoint& here) const;
};

/* A line for the process' log, of which there are some at most. */
void tell_refused(const Endpoint& peer, const char* why);

}  // namespace hopsml

#endif

/* Origin and user of a connection, as reported by this machine's kernel. */
#ifndef HOPSML_SERVER_ORIGIN_H
#define HOPSML_SERVER_ORIGIN_H

#include "endpoint.h"

namespace hopsml {

enum class Origin {
  kElsewhere,  /* from another machine, container or network namespace */
  kOwnUser,    /* from a process of this machine, and of this process' user */
  kOtherUser,  /* of another user */
  kGone,       /* its process has closed it */
  kHidden,     /* from an address of this machine, but of no visible process */
  kUnknown     /* from this machine; the kernel does not report its user */
};

Origin origin_of(const Endpoint& peer, const Endpoint& here);

}  // namespace hopsml

#endif

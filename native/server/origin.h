/* Where a connection comes from, and whose it is, as this machine's kernel knows it. */
#ifndef HOPSML_SERVER_ORIGIN_H
#define HOPSML_SERVER_ORIGIN_H

#include "endpoint.h"

namespace hopsml {

enum class Origin {
  kElsewhere,  /* from another machine, container or network namespace */
  kOwnUser,    /* from a process of this machine, and of this process' user */
  kOtherUser,  /* of somebody else */
  kGone,       /* whoever it was has closed it */
  kHidden,     /* from an address of this machine, but no process that can be seen has it */
  kUnknown     /* from this machine; the kernel says nothing about whose it is */
};

Origin origin_of(const Endpoint& peer, const Endpoint& here);

}  // namespace hopsml

#endif

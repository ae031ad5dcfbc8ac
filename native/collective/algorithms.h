/* Algorithms by which data is exchanged over sockets. */
#ifndef HOPSML_COLLECTIVE_ALGORITHMS_H
#define HOPSML_COLLECTIVE_ALGORITHMS_H

#include "call.h"

namespace hopsml {

enum class Algorithm : uint8_t {
  kGathered, /* all send everything to all, and all reduce it */
  kDirect,   /* each part is sent to its owner, which reduces it and sends it to all */
  kDoubled,  /* in pairs, whole arrays */
  kHalved,   /* in pairs, halves */
  kRing,     /* around the ring of all members */
};

/* Returns the algorithm for this call with so many members, the same on all of them; `asked`: the group's setting. */
Algorithm algorithm_for(hopsml_algorithm asked, const Call& call, size_t members);
/* Returns the call as its members send it to each other. */
Call on_its_way(const Call& call, Algorithm algorithm);

}  // namespace hopsml

#endif

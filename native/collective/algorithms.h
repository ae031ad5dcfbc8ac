/* Which way data takes over sockets. */
#ifndef HOPSML_COLLECTIVE_ALGORITHMS_H
#define HOPSML_COLLECTIVE_ALGORITHMS_H

#include "call.h"

namespace hopsml {

enum class Algorithm : uint8_t {
  kGathered, /* everything to everybody, who all reduce it */
  kDirect,   /* each part to its owner, who reduces it and sends it to all */
  kDoubled,  /* in pairs, whole arrays */
  kHalved,   /* in pairs, halves */
  kRing,     /* round all members */
};

/* For this call of so many members, who all find the same; `asked`: what the group was formed with. */
Algorithm algorithm_for(hopsml_algorithm asked, const Call& call, size_t members);
/* The call as its members tell each other of it. */
Call on_its_way(const Call& call, Algorithm algorithm);

}  // namespace hopsml

#endif

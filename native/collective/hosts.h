/* Which members are on which machine, as the options name them. */
#ifndef HOPSML_COLLECTIVE_HOSTS_H
#define HOPSML_COLLECTIVE_HOSTS_H

#include <cstddef>
#include <vector>

#include "collective.h"

namespace hopsml {

struct Hosts {
  std::vector<int32_t> here;    /* the ranks on this member's machine, this one among them */
  std::vector<int32_t> leaders; /* the lowest rank of each machine */
};

/* Where no machines are named each member is on one of its own. */
Hosts hosts_of(const hopsml_options& options);
/* Where `rank` stands among them. */
size_t index_of(const std::vector<int32_t>& ranks, int32_t rank);

}  // namespace hopsml

#endif

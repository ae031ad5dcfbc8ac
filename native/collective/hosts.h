/* Assignment of members to machines, from the names in the options. */
#ifndef HOPSML_COLLECTIVE_HOSTS_H
#define HOPSML_COLLECTIVE_HOSTS_H

#include <cstddef>
#include <vector>

#include "collective.h"

namespace hopsml {

struct Hosts {
  std::vector<int32_t> here;    /* ranks on this member's machine, including this one */
  std::vector<int32_t> leaders; /* the lowest rank of each machine */
};

/* Without names of machines each member counts as being on a separate one. */
Hosts hosts_of(const hopsml_options& options);
/* Returns the index of `rank` among them. */
size_t index_of(const std::vector<int32_t>& ranks, int32_t rank);

}  // namespace hopsml

#endif

/* What the server's library calls in the place of the C library's functions. */
#ifndef HOPSML_SERVER_CALLS_H
#define HOPSML_SERVER_CALLS_H

#include <vector>

#include "function_table.h"
#include "members.h"

namespace hopsml {

/* From now on; they are kept for good, as any thread may be reading them. */
void put_in_force(const Members* members);

const std::vector<Replacement>& replacements();

}  // namespace hopsml

#endif

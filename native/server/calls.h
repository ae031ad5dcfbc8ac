/* Functions that the server's library calls in place of the C library's. */
#ifndef HOPSML_SERVER_CALLS_H
#define HOPSML_SERVER_CALLS_H

#include <vector>

#include "function_table.h"
#include "members.h"

namespace hopsml {

/* Sets the members; they are never freed, as any thread may be reading them. */
void put_in_force(const Members* members);

const std::vector<Replacement>& replacements();

}  // namespace hopsml

#endif

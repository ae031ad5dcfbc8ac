/* How a call fails inside the library: thrown, and made a status at the C interface. */
#ifndef HOPSML_COLLECTIVE_TROUBLE_H
#define HOPSML_COLLECTIVE_TROUBLE_H

#include <cerrno>
#include <cstring>
#include <string>

#include "collective.h"

namespace hopsml {

struct Trouble {
  hopsml_status status;
  int32_t rank; /* of whom it is; -1: nobody */
  std::string text;
  bool told = false; /* whether it came from another member, who has told the others */
};

/* What the system said of the call that has just failed. */
inline Trouble system_trouble(const std::string& what, int error = errno) {
  return Trouble{HOPSML_SYSTEM, -1, what + ": " + std::strerror(error)};
}

inline Trouble ended_here() { return Trouble{HOPSML_ENDED, -1, "this group was ended here", true}; }

}  // namespace hopsml

#endif

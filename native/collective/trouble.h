/* Failure of a call inside the library: thrown, and converted into a status at the C interface. */
#ifndef HOPSML_COLLECTIVE_TROUBLE_H
#define HOPSML_COLLECTIVE_TROUBLE_H

#include <cerrno>
#include <cstring>
#include <string>

#include "collective.h"

namespace hopsml {

struct Trouble {
  hopsml_status status;
  int32_t rank; /* rank of the member that caused it; -1: none */
  std::string text;
  bool told = false; /* whether it came from another member, which has informed the others */
};

/* Returns the Trouble for the error of the system call that has just failed. */
inline Trouble system_trouble(const std::string& what, int error = errno) {
  return Trouble{HOPSML_SYSTEM, -1, what + ": " + std::strerror(error)};
}

inline Trouble ended_here() { return Trouble{HOPSML_ENDED, -1, "this group was ended here", true}; }

}  // namespace hopsml

#endif

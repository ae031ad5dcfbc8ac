/* Seconds of the monotonic clock, and deadlines. */
#ifndef HOPSML_COLLECTIVE_CLOCK_H
#define HOPSML_COLLECTIVE_CLOCK_H

#include <time.h>

#include <algorithm>
#include <cmath>
#include <limits>

namespace hopsml {

constexpr double kNever = std::numeric_limits<double>::infinity();

inline double now() {
  timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return double(t.tv_sec) + 1e-9 * double(t.tv_nsec);
}

/* Returns the milliseconds until `when` for poll(): rounded up, at least 0 and at most a minute. */
inline int milliseconds_until(double when) {
  return int(std::ceil(1e3 * std::min(60.0, std::max(0.0, when - now()))));
}

}  // namespace hopsml

#endif

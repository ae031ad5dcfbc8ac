/* Standard floating-point arithmetic, whatever mode the calling thread has set.
 *
 * Frameworks let their threads flush very small numbers to zero. Members with and without this mode would differ in the
 * last bits of a result that each of them computes itself. */
#ifndef HOPSML_COLLECTIVE_FLOAT_MODE_H
#define HOPSML_COLLECTIVE_FLOAT_MODE_H

#if defined(__x86_64__)
#include <xmmintrin.h>
#endif

namespace hopsml {

class StandardFloats {
 public:
#if defined(__x86_64__)
  StandardFloats() : before_(_mm_getcsr()) { _mm_setcsr(kDefault); }
  ~StandardFloats() { _mm_setcsr(before_); }
#else
  StandardFloats() = default;
#endif
  StandardFloats(const StandardFloats&) = delete;
  StandardFloats& operator=(const StandardFloats&) = delete;

#if defined(__x86_64__)
 private:
  static constexpr unsigned kDefault = 0x1f80; /* to the nearest; no zeros for small numbers; no traps */
  unsigned before_;
#endif
};

}  // namespace hopsml

#endif

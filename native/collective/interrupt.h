/* What one thread sets to end the waiting of others, for good: a descriptor that stays readable. */
#ifndef HOPSML_COLLECTIVE_INTERRUPT_H
#define HOPSML_COLLECTIVE_INTERRUPT_H

#include "descriptor.h"

namespace hopsml {

class Interrupt {
 public:
  Interrupt(); /* Trouble when the system has no descriptor */
  void set();
  bool is_set() const;
  int descriptor() const { return event_.get(); }

 private:
  Descriptor event_;
};

/* How long a group may take to form, and what stops that before. */
struct Limit {
  double deadline;
  const Interrupt& stop;
};

/* Whether this becomes readable before the deadline; Trouble when it is to stop first. */
bool is_readable(int descriptor, const Limit& limit);

}  // namespace hopsml

#endif

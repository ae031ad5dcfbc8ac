/* Permanent interrupt by which one thread ends the waiting of others: a descriptor that stays readable. */
#ifndef HOPSML_COLLECTIVE_INTERRUPT_H
#define HOPSML_COLLECTIVE_INTERRUPT_H

#include "descriptor.h"

namespace hopsml {

class Interrupt {
 public:
  Interrupt(); /* throws Trouble if the system has no descriptor */
  void set();
  bool is_set() const;
  int descriptor() const { return event_.get(); }

 private:
  Descriptor event_;
};

/* Time limit for forming a group, and an interrupt that ends it earlier. */
struct Limit {
  double deadline;
  const Interrupt& stop;
};

/* Returns whether the descriptor becomes readable before the deadline. Throws Trouble if the interrupt is set first. */
bool is_readable(int descriptor, const Limit& limit);

}  // namespace hopsml

#endif

#include "interrupt.h"

#include <poll.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include "clock.h"
#include "trouble.h"

namespace hopsml {

Interrupt::Interrupt() : event_(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)) {
  if (!event_) throw system_trouble("a descriptor to wait with");
}

void Interrupt::set() {
  uint64_t one = 1;
  ssize_t written = write(event_.get(), &one, sizeof one);
  (void)written; /* a counter that is full wakes the waiting threads as well */
}

bool Interrupt::is_set() const {
  pollfd event{event_.get(), POLLIN, 0};
  return poll(&event, 1, 0) > 0;
}

bool is_readable(int descriptor, const Limit& limit) {
  do {
    pollfd events[] = {{limit.stop.descriptor(), POLLIN, 0}, {descriptor, POLLIN, 0}};
    poll(events, 2, milliseconds_until(limit.deadline));
    if (events[0].revents != 0) throw ended_here();
    if (events[1].revents != 0) return true;
  } while (now() < limit.deadline);
  return false;
}

}  // namespace hopsml

/* The members between which calls are made until one of them is lost: their connections, shared memory, and algorithms.
 */
#ifndef HOPSML_COLLECTIVE_GENERATION_H
#define HOPSML_COLLECTIVE_GENERATION_H

#include "handshake.h"
#include "operations.h"
#include "settlement.h"

namespace hopsml {

class Generation {
 public:
  /* Connects the other members. Throws Trouble on failure. `ended`: interrupt of the group, used from then on. */
  Generation(const hopsml_options& options, Descriptor listener, const Limit& limit, const Interrupt& ended);

  const Membership& own() const { return own_; }
  Watch& watch() { return *watch_; }

  /* Exchanges positions with all members and returns them by rank; all members call it. */
  std::vector<Standing> exchange(const Standing& own, const Limit& limit);

  void carry_out(const Call& call, const void* in, void* out);
  /* Called after an operation in resumable groups: returns when all members have the whole result, or can get it
   * without the others. Returns whether one of them asks to pause, the same on all. */
  bool conclude(const Call& call);
  /* Returns whether `in` is completely read before `out` is written, which is not before the result is certain. */
  bool spares_input(const CallHeader& header) const;

  /* Interrupts the waiting of a call in progress, from any thread: it then checks whether it is interrupted or the
   * group has ended. */
  void interrupt();
  void wake() const;
  /* Leaves the group: the others treat this member as lost, with its last complete call and the reason. */
  void leave(uint64_t call, const std::string& why);

 private:
  Membership own_;
  std::unique_ptr<Watch> watch_;
  std::unique_ptr<Streams> streams_;
  std::unique_ptr<Room> room_; /* only if this machine has other members, and they can share memory */
  std::unique_ptr<Operations> operations_;
};

}  // namespace hopsml

#endif

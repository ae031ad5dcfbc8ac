/* The members between which calls are made, until one of them is lost: their connections, their memory, their ways. */
#ifndef HOPSML_COLLECTIVE_GENERATION_H
#define HOPSML_COLLECTIVE_GENERATION_H

#include "handshake.h"
#include "operations.h"
#include "settlement.h"

namespace hopsml {

class Generation {
 public:
  /* Finds the other members. Trouble when that does not succeed. `ended`: of the group, from then on. */
  Generation(const hopsml_options& options, Descriptor listener, const Limit& limit, const Interrupt& ended);

  const Membership& own() const { return own_; }
  Watch& watch() { return *watch_; }

  /* All members' standings, by rank; all of them call it. */
  std::vector<Standing> exchange(const Standing& own, const Limit& limit);

  void carry_out(const Call& call, const void* in, void* out);
  /* After it, where a loss is not the end: returns when all members have the whole result, or can get it without the others.
   * Whether one of them asks to pause, the same on all. */
  bool conclude(const Call& call);
  /* Whether `in` is read before anything is written to `out`, and that is not before the result is sure. */
  bool spares_input(const CallHeader& header) const;

  /* Lets a call under way look up, from any thread: after this it finds itself interrupted, or the group ended. */
  void interrupt();
  void wake() const;
  /* After this the others have lost this member, with the last call that it took its whole part in, and the reason. */
  void leave(uint64_t call, const std::string& why);

 private:
  Membership own_;
  std::unique_ptr<Watch> watch_;
  std::unique_ptr<Streams> streams_;
  std::unique_ptr<Room> room_; /* where this machine has other members, and they can share memory */
  std::unique_ptr<Operations> operations_;
};

}  // namespace hopsml

#endif

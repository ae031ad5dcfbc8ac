/* The memory that the members of one machine share, and how they wait in it for each other.
 *
 * They go through the same sequence of gates. Passing one is said in advance (`arrive`), so that a member can do something
 * else until all have come there (`wait`). Data lies in buffers, three for each member, used in turn: one that is filled, one
 * that is reduced, and one from which a slower member still takes the result.
 *
 * Whether a gate has been passed is decided once, for all members, whatever becomes of one of them: by the last that arrives,
 * or by the first that gives up waiting, with whom no further gate is passed ever. So where one has gone through the last gate
 * of a call, all have, or can: what they need lies in the memory. And who gives up knows that nobody else went on.
 */
#ifndef HOPSML_COLLECTIVE_ROOM_H
#define HOPSML_COLLECTIVE_ROOM_H

#include <atomic>

#include "watch.h"

namespace hopsml {

class Room {
 public:
  static constexpr size_t kBuffer = 1 << 20; /* bytes */
  static constexpr size_t kBuffers = 3;      /* of one member */
  static constexpr size_t kMostMembers = 64;

  /* New memory for so many members, that cannot be made smaller; Trouble when the system has none. */
  static Descriptor make_memory(size_t members);
  /* Trouble when this is not such memory. `index`: of this member in the room; `ranks`: of all of them. */
  Room(const Descriptor& memory, size_t index, std::vector<int32_t> ranks);
  ~Room();
  Room(const Room&) = delete;
  Room& operator=(const Room&) = delete;

  size_t index() const { return index_; }
  size_t members() const { return ranks_.size(); }
  /* A member's buffer in this round. */
  uint8_t* buffer(size_t member, uint64_t round) const;

  /* This member is at the gate; returns its number. */
  uint32_t arrive();
  /* Until all members are. Trouble as for any waiting in a call. */
  void wait(uint32_t gate, Watch& watch, const Call& call);
  /* The first gate of a call: all say what it is, and nobody goes on where they differ. */
  void post(const Call& call);
  void check_posted(const Call& call);
  /* Whether one of the calls that were posted last asked to pause; the same on all members. */
  bool pause_posted() const { return pause_posted_; }
  /* Lets this process's own threads look up. */
  void wake() const;

 private:
  struct Board;

  static size_t total_size(size_t members);
  void sleep(uint32_t gate, Watch& watch, const Call& call);
  bool is_passed(uint32_t gate) const;
  bool abandon(uint32_t gate);
  int32_t first_missing(uint32_t gate) const;

  Board* board_;
  size_t index_, size_;
  uint32_t epoch_;
  std::vector<int32_t> ranks_;
  uint32_t gate_ = 0; /* the last that this member has arrived at */
  bool pause_posted_ = false;
};

}  // namespace hopsml

#endif

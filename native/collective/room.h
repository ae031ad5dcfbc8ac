/* Shared memory of the members on one machine, with the gates (barriers) at which they wait for each other.
 *
 * They go through the same sequence of gates. A member announces its arrival (`arrive`), and can do other work until
 * all have arrived (`wait`). Data is in buffers, three for each member, used in rotation: one that is filled, one that
 * is reduced, and one from which a slower member still reads the result.
 *
 * Whether a gate has been passed is decided once, for all members, even if one of them fails: by the last that arrives,
 * or by the first that gives up waiting, after which no further gate is ever passed. So if one member has passed the
 * last gate of a call, all have, or can: the data is in the memory. And a member that gives up knows that no other one
 * continued. */
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

  /* Creates memory for so many members that cannot be shrunk. Throws Trouble if the system has none. */
  static Descriptor make_memory(size_t members);
  /* Throws Trouble if this is not such memory. `index`: of this member in the room; `ranks`: of all of its members. */
  Room(const Descriptor& memory, size_t index, std::vector<int32_t> ranks);
  ~Room();
  Room(const Room&) = delete;
  Room& operator=(const Room&) = delete;

  size_t index() const { return index_; }
  size_t members() const { return ranks_.size(); }
  /* Returns a member's buffer in this round. */
  uint8_t* buffer(size_t member, uint64_t round) const;

  /* Announces this member's arrival at the next gate; returns the gate's number. */
  uint32_t arrive();
  /* Waits until all members have arrived. Throws Trouble like any waiting in a call. */
  void wait(uint32_t gate, Watch& watch, const Call& call);
  /* First gate of a call: all post their descriptions, and none continues if they differ. */
  void post(const Call& call);
  void check_posted(const Call& call);
  /* Returns whether one of the calls posted last asked to pause; the same on all members. */
  bool pause_posted() const { return pause_posted_; }
  /* Wakes this process's own threads. */
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
  uint32_t gate_ = 0; /* the last gate that this member has reached */
  bool pause_posted_ = false;
};

}  // namespace hopsml

#endif

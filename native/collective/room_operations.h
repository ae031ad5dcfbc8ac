/* Operations of members that share memory.
 *
 * Data for others is copied into a member's buffer; the owner of a part reduces it directly from all the buffers, in
 * rank order, once. Data larger than a buffer is handled in rounds, of which the next is prepared while others are
 * still in this one. */
#ifndef HOPSML_COLLECTIVE_ROOM_OPERATIONS_H
#define HOPSML_COLLECTIVE_ROOM_OPERATIONS_H

#include "parts.h"
#include "room.h"

namespace hopsml {

class RoomOperations {
 public:
  RoomOperations(Room& room, Watch& watch) : room_(room), watch_(watch), sources_(room.members()) {}

  /* Returns whether an all_reduce writes nothing before its only gate is passed. */
  static bool is_small(const CallHeader& header);
  bool pause_posted() const { return room_.pause_posted(); }

  void barrier(const Call& call);
  void all_reduce(const Call& call, hopsml_reduction reduction, const void* in, void* out);
  void all_gather(const Call& call, const void* in, void* out);
  void broadcast(const Call& call, const void* in, void* out, size_t root);
  void reduce_scatter(const Call& call, const void* in, void* out);

 private:
  void pass(const Call& call);
  void reduce_small(const Call& call, hopsml_reduction reduction, const uint8_t* in, uint8_t* out);
  void stage(const Call& call, const uint8_t* in, Part elements, uint64_t round);
  void reduce_own(const Call& call, hopsml_reduction reduction, const uint8_t* in, uint8_t* out, Part elements, uint64_t round);
  void gather(const Call& call, uint8_t* out, Part elements, uint64_t round);
  uint8_t* own(uint64_t round) const { return room_.buffer(room_.index(), round); }

  Room& room_;
  Watch& watch_;
  std::vector<const void*> sources_;
  uint64_t round_ = 0; /* of all operations: selects the buffer in use */
};

}  // namespace hopsml

#endif

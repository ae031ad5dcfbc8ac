/* Choice of the transport of an operation: memory between members on one machine, sockets between machines, or both. */
#ifndef HOPSML_COLLECTIVE_OPERATIONS_H
#define HOPSML_COLLECTIVE_OPERATIONS_H

#include "hosts.h"
#include "room_operations.h"
#include "socket_operations.h"

namespace hopsml {

class Operations {
 public:
  /* `room`: shared memory of the members on this machine; none if there is no other member, or they cannot share
   * memory. `everywhere`: whether each machine with several members has one. */
  Operations(int32_t rank, int32_t size, const Hosts& hosts, Room* room, bool everywhere, hopsml_algorithm algorithm,
             Streams& streams, Watch& watch);

  void carry_out(const Call& call, const void* in, void* out);
  /* For a group that can lose a member and continue: see Generation. */
  bool conclude(const Call& call);
  bool spares_input(const CallHeader& header) const;

 private:
  void in_room(const Call& call, const void* in, void* out);
  void over_sockets(const Call& call, const void* in, void* out);
  void reduce_by_machine(const Call& call, const void* in, void* out);

  int32_t size_;
  bool all_here_;  /* all members share this memory */
  bool by_machine_; /* reductions use shared memory, and sockets between the machines' leaders */
  bool leads_;
  SocketOperations sockets_, leaders_;
  std::unique_ptr<RoomOperations> room_;
};

}  // namespace hopsml

#endif

/* How the members of one machine come to share memory: the lowest rank among them makes it and hands it to the others, each
 * of which proves itself again on the way. Where one of them cannot get it, all of them go on with sockets. */
#ifndef HOPSML_COLLECTIVE_ROOM_FORMING_H
#define HOPSML_COLLECTIVE_ROOM_FORMING_H

#include <memory>

#include "handshake.h"
#include "room.h"

namespace hopsml {

/* The room of these ranks, of which this member is one; none where they cannot share memory. All of them call it. */
std::unique_ptr<Room> form_room(const Membership& own, const std::vector<int32_t>& ranks, Watch& watch, const Limit& limit);

/* Whether all members of the group have what there can be of shared memory. All of them call it, once their rooms stand. */
bool agree_on_rooms(const Membership& own, bool here, Watch& watch, const Limit& limit);

}  // namespace hopsml

#endif

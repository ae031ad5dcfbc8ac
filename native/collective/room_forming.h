/* Set-up of memory shared by the members on one machine: the lowest rank among them creates it and passes it to the
 * others, each of which authenticates again. If one of them cannot get it, all of them use sockets. */
#ifndef HOPSML_COLLECTIVE_ROOM_FORMING_H
#define HOPSML_COLLECTIVE_ROOM_FORMING_H

#include <memory>

#include "handshake.h"
#include "room.h"

namespace hopsml {

/* Returns the shared memory of these ranks, which include this member; none if they cannot share memory. All of them
 * call it. */
std::unique_ptr<Room> form_room(const Membership& own, const std::vector<int32_t>& ranks, Watch& watch, const Limit& limit);

/* Returns whether all members of the group have shared memory where possible. All of them call it, after form_room. */
bool agree_on_rooms(const Membership& own, bool here, Watch& watch, const Limit& limit);

}  // namespace hopsml

#endif

/* Agreement of the members of a new generation on the call that some of them were in when the old one broke. No socket,
 * no memory.
 *
 * Each reports how many calls it has completed, in which generation the last of them was made, and whether it is in
 * doubt of the next one: whether it has that call's whole result, but not the confirmation of all members that they
 * have theirs.
 *
 * An operation guarantees (Room's gates; Operations::conclude) that a member returns from a call only when all have its
 * whole result, or can get it without help. So once one has completed a call,
 *
 * - every other one has completed it, or is in doubt of it: it gets its result now, and all are at the same position;
 * - no member has completed the next call, as that needs all to have begun it. It is repeated, with the present
 *   members, by those that had begun it, and made by those that had not. Only if no member of the old generation lacks
 *   a part of it, all being in doubt, it is complete instead.
 *
 * A settlement may itself be interrupted by a loss: some members then continue by it, others never received its outcome
 * and are where they were. A member that continued either completed the call that the others are in doubt of (in the
 * same attempt), or repeats it and cannot complete it without the others: the next settlement finds one of the two
 * cases above.
 *
 * A member that was not part of a generation cannot return once a call has been completed without it: its data of that
 * call belongs to another attempt, which the generation of the attempt shows. */
#ifndef HOPSML_COLLECTIVE_SETTLEMENT_H
#define HOPSML_COLLECTIVE_SETTLEMENT_H

#include <cstdint>
#include <string>
#include <vector>

namespace hopsml {

/* Position of a member in the sequence of calls. */
struct Standing {
  bool is_new = true;     /* it was in no generation, and the following fields have no meaning */
  bool is_doubtful = false;
  uint64_t completed = 0; /* completed calls, over all generations */
  uint64_t made_in = 0;   /* the generation that made the last of them */
  uint64_t tried_in = 0;  /* the generation of the attempt that it is in doubt of */
};

std::string encode(const Standing& standing);
/* Throws Trouble if these bytes are invalid. */
Standing decode_standing(const std::string& bytes);

/* Returns the position of all members from now on: `completed` and `made_in` of the result. A member that is in doubt
 * of call number `completed`, or of an earlier one, has completed it. Throws Trouble if one of them cannot continue
 * with the others. */
Standing settle(const std::vector<Standing>& members, uint64_t generation);

}  // namespace hopsml

#endif

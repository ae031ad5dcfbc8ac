/* How the members of a new generation agree on the call that some of them were in when the old one broke. No socket, no memory.
 *
 * Each says how many calls it has completed, in which generation the last of them was made, and whether it is in doubt of the
 * next one: whether it has that call's whole result, but not all members' word that they have theirs.
 *
 * What an operation guarantees (Room's gates; Operations::conclude): a member returns from a call only when all have its whole
 * result, or can get it without anybody's help. So once one has completed a call,
 *  - every other one has completed it, or is in doubt of it: it gets its result now, and all are at the same place;
 *  - nobody has completed the next call, for that needs all to have begun it. It is made again, with whatever members there are,
 *    by those who had begun it, and made by those who had not. Only where nobody of the old generation lacks anything of it,
 *    all being in doubt, it is complete instead.
 *
 * A settlement may itself be broken by a loss: some members then go on by it, others never heard the end of it and are where
 * they were. Who went on either completed the call that the others are in doubt of (in the same attempt), or makes it again and
 * cannot complete it without the others: the next settlement finds one of the two cases above.
 *
 * A member that was left out of a generation cannot come back once a call has been completed without it: what it may have of
 * that call comes of another attempt, which the generation of the attempt tells.
 */
#ifndef HOPSML_COLLECTIVE_SETTLEMENT_H
#define HOPSML_COLLECTIVE_SETTLEMENT_H

#include <cstdint>
#include <string>
#include <vector>

namespace hopsml {

/* Where a member is in the row of calls. */
struct Standing {
  bool is_new = true;     /* it was in no generation: nothing of what follows is said */
  bool is_doubtful = false;
  uint64_t completed = 0; /* calls, over all generations */
  uint64_t made_in = 0;   /* the generation that made the last of them */
  uint64_t tried_in = 0;  /* the generation of the attempt that it is in doubt of */
};

std::string encode(const Standing& standing);
/* Trouble when these bytes are none. */
Standing decode_standing(const std::string& bytes);

/* Where all of them are from now on: `completed` and `made_in` of the result. A member that is in doubt of call number
 * `completed`, or of an earlier one, has completed it. Trouble when one of them cannot go on with the others. */
Standing settle(const std::vector<Standing>& members, uint64_t generation);

}  // namespace hopsml

#endif

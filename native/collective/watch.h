/* Notices between members, separate from their data: which ones have ended, were lost, or take part.
 *
 * Each pair of members has a connection for notices only, so that a notice never waits behind data, and so that the end
 * of a process is known at once to all that wait, whichever member they wait for. */
#ifndef HOPSML_COLLECTIVE_WATCH_H
#define HOPSML_COLLECTIVE_WATCH_H

#include <poll.h>

#include <optional>
#include <string>
#include <vector>

#include "call.h"
#include "interrupt.h"
#include "line.h"
#include "trouble.h"

namespace hopsml {

enum class NoticeKind : uint8_t {
  kEnded = 1,  /* the sender leaves; `call`: the last call that it completed */
  kFailed = 2, /* the sender's operations fail from `call` on, for this reason */
  kAsk = 3,    /* query: who takes part in `call`? */
  kHere = 4,   /* the response: the sender is within an operation */
  kRoom = 5,   /* while a group forms: about the memory that members on one machine share */
  kPlace = 6,  /* and the sender's position in the sequence of calls */
};

struct Notice {
  NoticeKind kind{};
  hopsml_status status = HOPSML_OK;
  int32_t rank = -1;
  uint64_t call = 0;
  std::string text;
};

constexpr size_t kLongestNotice = 1024; /* of its text, in bytes */

std::string encode(const Notice& notice);
/* Removes the first notice from `bytes` and returns it; nothing if it is incomplete. Throws Trouble if it is invalid.
 */
std::optional<Notice> decode(std::string& bytes);

class Watch {
 public:
  /* Connections by rank; the entry of this member is empty. `ended`: interrupt of the group, which outlives this
   * generation. */
  Watch(int32_t rank, std::vector<Line> lines, const Interrupt& ended);

  /* Readable when there is a notice to read. */
  int descriptor() const { return events_.get(); }
  /* Reads received notices. Throws Trouble if the call cannot be finished. */
  void look(const Call& call);
  /* Waits until one of these descriptors, or a notice, is ready; then reads notices. `awaited`: a rank for the message.
   */
  void wait(std::vector<pollfd>& others, const Call& call, int32_t awaited);
  /* Called during other kinds of waiting: sends queries, and gives up at the deadline. Returns the seconds until the
   * next call. */
  double patience(const Call& call, int32_t awaited);

  void tell(int32_t rank, const Notice& notice);
  void tell_all(const Notice& notice);
  /* Returns the next notice of this kind from `rank`, while a group forms; nothing at the deadline. Throws Trouble if
   * it is lost. */
  std::optional<Notice> hear(int32_t rank, NoticeKind kind, const Limit& limit);

  /* Ends the waiting, from any thread. */
  void interrupt() { interrupt_.set(); }
  /* After this the other members receive nothing from this one. */
  void close();

 private:
  struct Member {
    Line line;
    std::string unsent, received;
    std::vector<Notice> unheard; /* of kRoom and kPlace */
    bool closed = false;
    std::optional<Notice> ended, failed;
    uint64_t answered = 0; /* the newest query that it has answered */
  };

  void collect();
  void receive(int32_t rank);
  void take(int32_t rank, Notice notice);
  void check(const Call& call) const;
  [[noreturn]] void give_up(const Call& call, int32_t awaited) const;

  int32_t rank_;
  std::vector<Member> members_;
  Descriptor events_;
  Interrupt interrupt_;
  uint64_t asked_ = 0;
};

}  // namespace hopsml

#endif

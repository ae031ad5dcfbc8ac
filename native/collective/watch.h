/* The members' word to each other beside their data: who has ended, who was lost, who takes part.
 *
 * Each pair of members keeps a connection on which nothing else goes, so that a notice is never behind data, and so that
 * the end of a process is known at once to all that wait, whomever they wait for.
 */
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
  kEnded = 1,  /* the sender leaves; `call`: the last that it took its whole part in */
  kFailed = 2, /* the sender's operations fail from `call` on, for this reason */
  kAsk = 3,    /* who takes part in `call`? */
  kHere = 4,   /* the answer: the sender is within an operation */
  kRoom = 5,   /* while a group forms: about the memory that members of one machine share */
  kPlace = 6,  /* and where the sender is in the row of calls */
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
/* Takes the first notice off `bytes`; nothing while it is not whole. Trouble when this can be none. */
std::optional<Notice> decode(std::string& bytes);

class Watch {
 public:
  /* Connections by rank; that of this member is none. `ended`: of the group, beyond this generation. */
  Watch(int32_t rank, std::vector<Line> lines, const Interrupt& ended);

  /* Readable when there is something to look at. */
  int descriptor() const { return events_.get(); }
  /* Reads what has come. Trouble when the call cannot be finished. */
  void look(const Call& call);
  /* Waits until one of these, or anything of the members, is ready; then looks. `awaited`: a rank for the message. */
  void wait(std::vector<pollfd>& others, const Call& call, int32_t awaited);
  /* To be called while waiting in another way: asks, and gives up at the deadline. Returns seconds until it wants to be again. */
  double patience(const Call& call, int32_t awaited);

  void tell(int32_t rank, const Notice& notice);
  void tell_all(const Notice& notice);
  /* The next notice of this kind from `rank`, while a group forms; nothing at the deadline. Trouble when it is lost. */
  std::optional<Notice> hear(int32_t rank, NoticeKind kind, const Limit& limit);

  /* Ends what waits, from any thread. */
  void interrupt() { interrupt_.set(); }
  /* After this nobody hears of this member again. */
  void close();

 private:
  struct Member {
    Line line;
    std::string unsent, received;
    std::vector<Notice> unheard; /* of kRoom and kPlace */
    bool closed = false;
    std::optional<Notice> ended, failed;
    uint64_t answered = 0; /* the newest question that it has answered */
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

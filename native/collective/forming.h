/* How the members of a group find each other: the higher rank connects to the lower one, which listens.
 *
 * Strangers cost a connection each, for a few seconds, and no more than a bounded number at a time; whatever they send,
 * the group forms, as each member goes on trying until its deadline.
 */
#ifndef HOPSML_COLLECTIVE_FORMING_H
#define HOPSML_COLLECTIVE_FORMING_H

#include <list>
#include <vector>

#include "clock.h"
#include "conversation.h"
#include "interrupt.h"
#include "sockets.h"

namespace hopsml {

/* Lines by rank; that of this member is none. */
struct Mesh {
  std::vector<Line> control, data;
};

class Forming {
 public:
  /* `listener`: none where no higher rank is awaited. */
  Forming(const Membership& own, Descriptor listener, const Limit& limit);

  /* Connects to `peer` until it has proved itself. */
  void connect(int32_t peer, std::vector<Address> addresses, Channel channel);
  /* Awaits that `peer` connects. */
  void expect(int32_t peer, Channel channel);
  /* Until all are there; Trouble at the limit, when a member ends, or when one proves to be of a later generation. */
  void run();
  /* The connection, once run() has returned. */
  Connection take(int32_t peer, Channel channel);

 private:
  struct Link {
    int32_t peer;
    Channel channel;
    std::vector<Address> addresses{}; /* empty: the peer connects */
    Connection proved{};
    std::list<Conversation> talk{};   /* at most one: with whom we connect */
    bool connecting = false;        /* before the first byte */
    double next_try = 0, pause = 0.002, lost_at = kNever;
    size_t tries = 0;
    std::string reason = "it did not answer";
    bool refused = false;
  };

  bool complete() const;
  void begin(Link& link);
  void put_off(Link& link, const std::string& reason);
  void advance(Link& link);
  void accept_visitors();
  void advance_visitors();
  void look_for_losses();
  void wait();
  [[noreturn]] void give_up() const;

  const Membership& own_;
  Descriptor listener_;
  Limit limit_;
  std::vector<Link> links_;
  std::list<Conversation> visitors_; /* who has connected and proved nothing yet, the oldest first */
  std::string turned_away_;          /* why the last of them was refused */
};

/* Forms the mesh of a group whose members' addresses these are. */
Mesh form_mesh(const Membership& own, const std::vector<std::string>& addresses, Descriptor listener, const Limit& limit);

}  // namespace hopsml

#endif

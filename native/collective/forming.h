/* Connects the members of a group: the higher rank connects to the lower one, which listens.
 *
 * Unauthenticated peers cost one connection each, for a few seconds, up to a bounded number at a time; whatever they
 * send, the group forms, as each member retries until its deadline. */
#ifndef HOPSML_COLLECTIVE_FORMING_H
#define HOPSML_COLLECTIVE_FORMING_H

#include <list>
#include <vector>

#include "clock.h"
#include "conversation.h"
#include "interrupt.h"
#include "sockets.h"

namespace hopsml {

/* Connections by rank; the entry of this member is empty. */
struct Mesh {
  std::vector<Line> control, data;
};

class Forming {
 public:
  /* `listener`: none if no higher rank is expected. */
  Forming(const Membership& own, Descriptor listener, const Limit& limit);

  /* Connects to `peer` until the handshake has succeeded. */
  void connect(int32_t peer, std::vector<Address> addresses, Channel channel);
  /* Expects a connection from `peer`. */
  void expect(int32_t peer, Channel channel);
  /* Runs until all are connected. Throws Trouble at the limit, when a member ends, or when one is of a later
   * generation. */
  void run();
  /* Returns the connection, after run() has returned. */
  Connection take(int32_t peer, Channel channel);

 private:
  struct Link {
    int32_t peer;
    Channel channel;
    std::vector<Address> addresses{}; /* empty: the peer connects */
    Connection proved{};
    std::list<Conversation> talk{};   /* at most one: the handshake of an outgoing connection */
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
  std::list<Conversation> visitors_; /* peers that have connected and not authenticated yet, the oldest first */
  std::string turned_away_;          /* reason why the last of them was refused */
};

/* Connects the members of a group, whose addresses these are. */
Mesh form_mesh(const Membership& own, const std::vector<std::string>& addresses, Descriptor listener, const Limit& limit);

}  // namespace hopsml

#endif

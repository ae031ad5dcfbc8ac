/* Transfer of data between this member and others over their sockets, all exchanges at once. */
#ifndef HOPSML_COLLECTIVE_STREAMS_H
#define HOPSML_COLLECTIVE_STREAMS_H

#include <memory>
#include <vector>

#include "line.h"
#include "watch.h"

namespace hopsml {

struct Span {
  void* data = nullptr;
  size_t size = 0;
};

/* Data to be sent to one member. */
class Source {
 public:
  virtual ~Source() = default;
  virtual Span next() = 0; /* bytes that can be sent now; empty: none yet, or none any more */
  virtual void went(size_t size) = 0;
  virtual bool done() const = 0;
};

/* Destination of data received from one member. */
class Sink {
 public:
  virtual ~Sink() = default;
  virtual Span room() = 0; /* where the next bytes are received; empty: they have to wait, or there are none any more */
  virtual void came(size_t size) = 0;
  virtual bool done() const = 0;
};

/* An exchange with one member: the call's header, in one or both directions, followed by the given data. */
struct Way {
  size_t index; /* index of the member among those that take part */
  int32_t rank;
  std::unique_ptr<Source> source; /* may be none */
  std::unique_ptr<Sink> sink;     /* may be none */
  bool sends = true, receives = true;
  bool queues = false; /* waits for earlier exchanges with the same member */

  size_t header_sent = 0, header_received = 0;
  CallHeader received{};

  bool sending() const { return sends && (header_sent < sizeof(CallHeader) || (source && !source->done())); }
  bool receiving() const { return receives && (header_received < sizeof(CallHeader) || (sink && !sink->done())); }
};

class Streams {
 public:
  /* Connections by rank. */
  Streams(int32_t rank, std::vector<Line> lines, Watch& watch);

  /* Runs until everything is sent and received. Throws Trouble if a member called something else, is lost, or takes no
   * part in time. */
  void run(std::vector<Way>& ways, const Call& call);
  void close();

 private:
  Line& line(const Way& way) { return lines_[size_t(way.rank)]; }
  bool send(Way& way, const Call& call);
  bool receive(Way& way, const Call& call);
  void wait(std::vector<Way>& ways, const Call& call);
  [[noreturn]] void lost(int32_t rank, const Call& call);

  int32_t rank_;
  std::vector<Line> lines_;
  Watch& watch_;
  std::vector<pollfd> events_;
};

}  // namespace hopsml

#endif

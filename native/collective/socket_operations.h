/* The operations over sockets: each member exchanges with each other one, directly.
 *
 * A reduction goes in two halves, as one stream: who owns a part gets what the others have of it, reduces it in rank order,
 * once, and sends the result to all; so all have the same bits, and 16-bit formats are rounded once in each half.
 */
#ifndef HOPSML_COLLECTIVE_SOCKET_OPERATIONS_H
#define HOPSML_COLLECTIVE_SOCKET_OPERATIONS_H

#include "streams.h"

namespace hopsml {

class SocketOperations {
 public:
  /* Between these ranks, of which this member is the one at `index`. */
  SocketOperations(size_t index, std::vector<int32_t> ranks, Streams& streams)
      : index_(index), ranks_(std::move(ranks)), streams_(streams) {}

  void barrier(const Call& call);
  void all_reduce(const Call& call, hopsml_reduction reduction, const void* in, void* out);
  void all_gather(const Call& call, const void* in, void* out);
  void broadcast(const Call& call, const void* in, void* out); /* of a root that is one of them */
  void reduce_scatter(const Call& call, const void* in, void* out);

 private:
  size_t members() const { return ranks_.size(); }
  std::vector<Way> ways() const;
  void gather(const Call& call, const void* in, void* out, size_t bytes);
  void reduce_gathered(const Call& call, hopsml_reduction reduction, const void* in, void* out);

  size_t index_;
  std::vector<int32_t> ranks_;
  Streams& streams_;
  std::vector<uint8_t> scratch_;
};

}  // namespace hopsml

#endif

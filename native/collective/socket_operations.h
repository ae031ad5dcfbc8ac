/* Operations over sockets.
 *
 * In all but reductions each member exchanges with each other one, directly. So do reductions of few members, in two
 * halves of one stream: the owner of a part receives the others' elements, reduces them in rank order, once, and sends
 * the result to all; so all have the same bits, and 16-bit formats are rounded once in each half. Others are done
 * pairwise, or in a ring (algorithms.h). */
#ifndef HOPSML_COLLECTIVE_SOCKET_OPERATIONS_H
#define HOPSML_COLLECTIVE_SOCKET_OPERATIONS_H

#include "part_reduction.h"
#include "streams.h"

namespace hopsml {

class SocketOperations {
 public:
  /* Between these ranks, of which this member is the one at `index`. */
  SocketOperations(size_t index, std::vector<int32_t> ranks, hopsml_algorithm algorithm, Streams& streams)
      : index_(index), ranks_(std::move(ranks)), algorithm_(algorithm), streams_(streams) {}

  void barrier(const Call& call);
  void all_reduce(const Call& call, hopsml_reduction reduction, const void* in, void* out);
  void all_gather(const Call& call, const void* in, void* out);
  void broadcast(const Call& call, const void* in, void* out); /* for a root that is one of the ranks */
  void reduce_scatter(const Call& call, const void* in, void* out);

  /* Returns when all members have called it; the result is whether one of them asks to pause. */
  bool agree(const Call& call);

 private:
  size_t members() const { return ranks_.size(); }
  Way way(size_t step) const;
  std::vector<Way> ways() const;
  std::vector<Way> neighbours(size_t distance) const;
  void gather(const Call& call, const void* in, void* out, size_t bytes);
  void reduce_gathered(const Call& call, hopsml_reduction reduction, const void* in, void* out);
  void reduce_directly(const Call& call, hopsml_reduction reduction, const void* in, void* out);
  void reduce_in_ring(const Call& call, hopsml_reduction reduction, const void* in, void* out);

  size_t index_;
  std::vector<int32_t> ranks_;
  hopsml_algorithm algorithm_;
  Streams& streams_;
  std::vector<uint8_t> scratch_;
  PartReduction::Memory part_memory_;
};

}  // namespace hopsml

#endif

/* An all-reduce in which each member exchanges with its two neighbours only.
 *
 * There are as many parts as members. A part begins at the member with its number and goes around the ring, each member
 * adding its elements; once complete it goes around once more. Each member sends one stream, which continues as bytes
 * arrive from the other side: no member waits for the end of a part. Each part is summed once, from its first member on
 * in ring order, so all have the same bits. */
#ifndef HOPSML_COLLECTIVE_RING_REDUCTION_H
#define HOPSML_COLLECTIVE_RING_REDUCTION_H

#include "streams.h"

namespace hopsml {

class RingReduction {
 public:
  /* `in` and `out` may be the same. */
  RingReduction(const Call& call, hopsml_reduction reduction, size_t index, size_t members, const void* in, void* out);

  /* Streams to the next member, and from the previous one; each is made once. */
  std::unique_ptr<Source> source();
  std::unique_ptr<Sink> sink();

 private:
  size_t steps() const { return 2 * members_ - 2; }
  /* Returns the part that is sent in this step; the part received in it is sent in the next one. */
  size_t part_sent(size_t step) const { return (index_ + 2 * members_ - step) % members_; }

  hopsml_type type_;
  hopsml_reduction reduction_;
  size_t index_, members_, count_;
  const uint8_t* in_;
  uint8_t* out_;
  std::vector<size_t> ready_;  /* received bytes, by step */
  std::vector<uint8_t> aside_;
};

}  // namespace hopsml

#endif

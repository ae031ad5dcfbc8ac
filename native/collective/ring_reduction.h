/* An all-reduce in which each member talks to its two neighbours only.
 *
 * There are as many parts as members. A part begins at the member of its number and goes round, each adding its own to what
 * comes; where it is whole it goes round once more. What one member sends is one stream, which runs on as bytes come in from
 * the other side: nobody waits for the end of a part. Each part is summed once, from its member on in ring order, so all
 * have the same bits.
 */
#ifndef HOPSML_COLLECTIVE_RING_REDUCTION_H
#define HOPSML_COLLECTIVE_RING_REDUCTION_H

#include "streams.h"

namespace hopsml {

class RingReduction {
 public:
  /* `in` and `out` may be the same. */
  RingReduction(const Call& call, hopsml_reduction reduction, size_t index, size_t members, const void* in, void* out);

  /* To the next member, from the previous one; once. */
  std::unique_ptr<Source> source();
  std::unique_ptr<Sink> sink();

 private:
  size_t steps() const { return 2 * members_ - 2; }
  /* The part that is sent in this step; what is received in it is sent in the next one. */
  size_t part_sent(size_t step) const { return (index_ + 2 * members_ - step) % members_; }

  hopsml_type type_;
  hopsml_reduction reduction_;
  size_t index_, members_, count_;
  const uint8_t* in_;
  uint8_t* out_;
  std::vector<size_t> ready_;  /* bytes that have come, by step */
  std::vector<uint8_t> aside_;
};

}  // namespace hopsml

#endif

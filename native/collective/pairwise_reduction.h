/* All-reduces in as many steps as the number of members has binary digits.
 *
 * In each step members exchange with one at twice the distance of the previous step. Small arrays are sent whole, and
 * both reduce them (recursive doubling); of large ones each member sends half of what it still has, and the result
 * returns in reverse order (recursive halving). The sum is that of a balanced tree over the members in their order,
 * lower ranks first, so all have the same bits. If the number is no power of two, the first members begin in pairs, of
 * which one sends its elements to the other one and receives the result at the end. */
#ifndef HOPSML_COLLECTIVE_PAIRWISE_REDUCTION_H
#define HOPSML_COLLECTIVE_PAIRWISE_REDUCTION_H

#include "streams.h"

namespace hopsml {

class PairwiseReduction {
 public:
  /* Between these ranks, of which this member is the one at `index`; `aside` is scratch memory. */
  PairwiseReduction(const Call& call, hopsml_reduction reduction, size_t index, const std::vector<int32_t>& ranks,
                    Streams& streams, std::vector<uint8_t>& aside);

  /* `out` contains this member's elements, and then the result. `whole`: arrays are exchanged whole. */
  void run(void* out, bool whole);

 private:
  void double_up();
  void halve();
  void exchange(size_t partner, std::unique_ptr<Source> source, std::unique_ptr<Sink> sink);
  /* Streams that send or receive all of these elements. */
  std::unique_ptr<Source> gives(size_t begin, size_t end) const;
  std::unique_ptr<Sink> gets(size_t begin, size_t end) const;
  /* Stream that reduces received elements with this member's own. */
  std::unique_ptr<Sink> adds(size_t begin, size_t end, bool own_first) const;
  void divide_mean(size_t begin, size_t end) const;
  size_t index_at(size_t place) const { return place < extra_ ? 2 * place + 1 : place + extra_; }

  const Call& call_;
  hopsml_type type_;
  bool is_mean_;
  hopsml_reduction reduction_; /* of two members' elements */
  size_t index_;
  const std::vector<int32_t>& ranks_;
  Streams& streams_;
  std::vector<uint8_t>& aside_;
  size_t element_, count_;
  size_t power_ = 1, extra_ = 0; /* the largest power of two among the members, and the number beyond it */
  size_t place_ = 0;             /* of this member among that power of two */
  uint8_t* out_ = nullptr;
  bool has_met_neighbours_ = false;
};

}  // namespace hopsml

#endif

/* Reduction of the part that this member owns: the others' elements are received in any order, and reduced in rank
 * order as soon as all have arrived; the result is sent while more is received. */
#ifndef HOPSML_COLLECTIVE_PART_REDUCTION_H
#define HOPSML_COLLECTIVE_PART_REDUCTION_H

#include "buffer.h"
#include "streams.h"

namespace hopsml {

/* Returns a stream of this member's elements of another one's part. */
std::unique_ptr<Source> contribution_source(const Call& call, const void* elements, size_t count);
/* Returns a stream into which the result of another one's part is received. */
std::unique_ptr<Sink> result_sink(const Call& call, void* elements, size_t count);

class PartReduction {
 public:
  struct Memory {
    std::vector<Buffer> windows; /* by member */
    Buffer encoded;
  };

  /* `own`, `out`: `count` elements of this part; they may be the same. */
  PartReduction(const Call& call, hopsml_reduction reduction, size_t members, const void* own, void* out, size_t count,
                Memory& memory);
  ~PartReduction();

  /* Returns a stream for the elements of the member at `index`. */
  std::unique_ptr<Sink> sink(size_t index);
  /* Returns a stream of the result as it becomes available, once for each member that receives it. */
  std::unique_ptr<Source> result_source();

 private:
  class Contribution;

  void arrived();
  void reduce_next(size_t count);

  Memory& memory_;
  hopsml_type type_;
  hopsml_reduction reduction_;
  hopsml_wire wire_;
  const uint8_t* own_;
  uint8_t* out_;
  size_t element_, count_;
  std::vector<Contribution*> contributions_; /* by index; the entry of this member is empty */
  std::vector<const void*> sources_;         /* of a reduction, by index */
  size_t reduced_ = 0;                       /* elements */
  size_t result_bytes_ = 0;                  /* bytes of the result that can be sent */
  uint8_t* encoded_ = nullptr;               /* the encoded result, if it differs from `out` */
};

}  // namespace hopsml

#endif

/* The part of a reduction that this member owns: what the others have of it comes in, in any order, and is reduced in rank
 * order as soon as all have it; the result can go on while more comes in. */
#ifndef HOPSML_COLLECTIVE_PART_REDUCTION_H
#define HOPSML_COLLECTIVE_PART_REDUCTION_H

#include "buffer.h"
#include "streams.h"

namespace hopsml {

/* What a member has of another one's part, on its way there. */
std::unique_ptr<Source> contribution_source(const Call& call, const void* elements, size_t count);
/* Where the result of another one's part comes in. */
std::unique_ptr<Sink> result_sink(const Call& call, void* elements, size_t count);

class PartReduction {
 public:
  struct Memory {
    std::vector<Buffer> windows; /* by member */
    Buffer encoded;
  };

  /* `own`, `out`: of this part, `count` elements; they may be the same. */
  PartReduction(const Call& call, hopsml_reduction reduction, size_t members, const void* own, void* out, size_t count,
                Memory& memory);
  ~PartReduction();

  /* For what the member at `index` has of this part. */
  std::unique_ptr<Sink> sink(size_t index);
  /* The result as it becomes known, once for each member that gets it. */
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
  std::vector<Contribution*> contributions_; /* by index; that of this member is none */
  std::vector<const void*> sources_;         /* of a reduction, by index */
  size_t reduced_ = 0;                       /* elements */
  size_t result_bytes_ = 0;                  /* of the result that can go */
  uint8_t* encoded_ = nullptr;               /* the result as it goes, where that differs from `out` */
};

}  // namespace hopsml

#endif

/* Sink that reduces received elements at once with this member's own. */
#ifndef HOPSML_COLLECTIVE_REDUCING_SINK_H
#define HOPSML_COLLECTIVE_REDUCING_SINK_H

#include "streams.h"

namespace hopsml {

/* Reduction of two members' elements. */
struct Pairing {
  hopsml_type type;
  hopsml_reduction reduction; /* of two elements, so never the mean */
  bool own_first;             /* order of the operands */
  size_t divisor;             /* divisor of complete sums; 1: none, or not yet */
};

class ReducingSink : public Sink {
 public:
  /* `own` and `target` may be the same. `ready`: counter of the available bytes of the target; may be none. `aside`:
   * memory for received bytes that are not reduced yet, less than an element between two calls of `came`. */
  ReducingSink(const Pairing& pairing, const void* own, void* target, size_t count, std::vector<uint8_t>& aside,
               size_t* ready = nullptr);

  Span room() override;
  void came(size_t size) override;
  bool done() const override { return reduced_ == size_; }

 private:
  Pairing pairing_;
  const uint8_t* own_;
  uint8_t* target_;
  size_t element_, size_;
  std::vector<uint8_t>& aside_;
  size_t* ready_;
  size_t reduced_ = 0, held_ = 0; /* bytes */
};

}  // namespace hopsml

#endif

/* Where elements come in that are reduced at once with what is here of them. */
#ifndef HOPSML_COLLECTIVE_REDUCING_SINK_H
#define HOPSML_COLLECTIVE_REDUCING_SINK_H

#include "streams.h"

namespace hopsml {

/* What is to be done with two members' elements. */
struct Pairing {
  hopsml_type type;
  hopsml_reduction reduction; /* of two, so never the mean */
  bool own_first;             /* in the order of the sum */
  size_t divisor;             /* of the sums when they are whole; 1: none, or not yet */
};

class ReducingSink : public Sink {
 public:
  /* `own` and `target` may be the same. `ready`: where the bytes of the target that are there are counted; may be none.
   * `aside`: memory for what has come and is not reduced yet, between two calls of `came` less than an element. */
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

/* float32 elements sent in blocks of 16 bits (wire_formats.h), with several blocks per system call. */
#ifndef HOPSML_COLLECTIVE_BLOCK_STREAMS_H
#define HOPSML_COLLECTIVE_BLOCK_STREAMS_H

#include "streams.h"
#include "wire_formats.h"

namespace hopsml {

/* Blocks that are being received. */
class IncomingBlocks {
 public:
  IncomingBlocks(hopsml_wire wire, size_t count);

  /* Returns where bytes of at most so many elements can be received. */
  Span room(size_t most);
  void came(size_t size) { held_ += size; }
  /* Decodes the next block to `elements` if it is complete; returns its number of elements, 0 if it is incomplete. */
  size_t take(float* elements);
  bool done() const { return left_ == 0; }

 private:
  hopsml_wire wire_;
  size_t left_; /* elements */
  std::vector<uint8_t> bytes_;
  size_t at_ = 0, held_ = 0; /* bytes: decoded, and received */
};

class EncodingSource : public Source {
 public:
  EncodingSource(hopsml_wire wire, const float* elements, size_t count);

  Span next() override;
  void went(size_t size) override { at_ += size; }
  bool done() const override { return left_ == 0 && at_ == held_; }

 private:
  hopsml_wire wire_;
  const float* elements_;
  size_t left_;
  std::vector<uint8_t> bytes_;
  size_t at_ = 0, held_ = 0; /* bytes: sent, and encoded */
};

class DecodingSink : public Sink {
 public:
  DecodingSink(hopsml_wire wire, float* elements, size_t count) : blocks_(wire, count), elements_(elements), left_(count) {}

  Span room() override { return blocks_.room(left_); }
  void came(size_t size) override {
    blocks_.came(size);
    while (size_t count = blocks_.take(elements_)) elements_ += count, left_ -= count;
  }
  bool done() const override { return blocks_.done(); }

 private:
  IncomingBlocks blocks_;
  float* elements_;
  size_t left_;
};

}  // namespace hopsml

#endif

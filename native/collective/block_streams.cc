#include "block_streams.h"

#include <algorithm>

namespace hopsml {
namespace {

constexpr size_t kAtOnce = 16 * kWireBlock; /* elements: they fit into a near cache, and need few system calls */

}  // namespace

IncomingBlocks::IncomingBlocks(hopsml_wire wire, size_t count)
    : wire_(wire), left_(count), bytes_(encoded_size(wire, std::min(count, kAtOnce))) {}

Span IncomingBlocks::room(size_t most) {
  size_t count = std::min(left_, most);
  if (count < left_) count -= count % kWireBlock;
  size_t end = std::min(bytes_.size(), at_ + encoded_size(wire_, count));
  return {bytes_.data() + held_, end > held_ ? end - held_ : 0};
}

size_t IncomingBlocks::take(float* elements) {
  size_t count = std::min(left_, kWireBlock), size = encoded_size(wire_, count);
  if (count == 0 || held_ - at_ < size) return 0;
  decode_block(wire_, bytes_.data() + at_, count, elements);
  left_ -= count, at_ += size;
  if (at_ == held_) at_ = held_ = 0;
  return count;
}

EncodingSource::EncodingSource(hopsml_wire wire, const float* elements, size_t count)
    : wire_(wire), elements_(elements), left_(count), bytes_(encoded_size(wire, std::min(count, kAtOnce))) {}

Span EncodingSource::next() {
  if (at_ == held_) at_ = held_ = 0;
  while (held_ < bytes_.size() && at_ == 0 && left_ > 0) {
    size_t count = std::min(left_, kWireBlock), size = encoded_size(wire_, count);
    if (held_ + size > bytes_.size()) break;
    encode_block(wire_, elements_, count, bytes_.data() + held_);
    elements_ += count, left_ -= count, held_ += size;
  }
  return {bytes_.data() + at_, held_ - at_};
}

}  // namespace hopsml

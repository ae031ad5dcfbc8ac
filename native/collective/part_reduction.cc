#include "part_reduction.h"

#include <algorithm>

#include "block_streams.h"
#include "element_types.h"
#include "memory_streams.h"
#include "reduce_kernels.h"

namespace hopsml {
namespace {

constexpr size_t kWindow = 32 * kWireBlock; /* elements of one member that are buffered until the others' arrive */
constexpr size_t kWorthwhile = 2048;        /* elements to reduce at a time, unless they are the last */

}  // namespace

std::unique_ptr<Source> contribution_source(const Call& call, const void* elements, size_t count) {
  if (wire_of(call.header) != HOPSML_WIRE_SAME)
    return std::make_unique<EncodingSource>(wire_of(call.header), static_cast<const float*>(elements), count);
  return std::make_unique<MemorySource>(elements, count * element_size(hopsml_type(call.header.type)));
}

std::unique_ptr<Sink> result_sink(const Call& call, void* elements, size_t count) {
  if (wire_of(call.header) != HOPSML_WIRE_SAME)
    return std::make_unique<DecodingSink>(wire_of(call.header), static_cast<float*>(elements), count);
  return std::make_unique<MemorySink>(elements, count * element_size(hopsml_type(call.header.type)));
}

/* One member's elements of this part, of which a window is buffered, in a type that has arithmetic. */
class PartReduction::Contribution : public Sink {
 public:
  Contribution(PartReduction& part, Buffer& memory)
      : part_(part),
        size_(std::min(part.count_, kWindow) * part.element_),
        ring_(memory.of(size_)),
        blocks_(part.wire_, part.wire_ == HOPSML_WIRE_SAME ? 0 : part.count_) {}

  Span room() override {
    if (done()) return {};
    if (encodes()) return blocks_.room(free() / part_.element_);
    size_t begin = bytes_ % size_;
    return {ring_ + begin, std::min({total() - bytes_, free(), size_ - begin})};
  }

  void came(size_t size) override {
    if (encodes()) {
      blocks_.came(size);
      while (size_t count = blocks_.take(reinterpret_cast<float*>(ring_ + bytes_ % size_))) {
        bytes_ += count * part_.element_;
        part_.arrived();
      }
    } else {
      bytes_ += size;
      part_.arrived();
    }
  }

  bool done() const override { return bytes_ == total(); }

  size_t elements() const { return bytes_ / part_.element_; }
  const void* element(size_t index) const { return ring_ + index * part_.element_ % size_; }
  size_t ring_elements() const { return size_ / part_.element_; }

 private:
  bool encodes() const { return part_.wire_ != HOPSML_WIRE_SAME; }
  size_t total() const { return part_.count_ * part_.element_; }
  size_t free() const { return size_ - (bytes_ - part_.reduced_ * part_.element_); }

  PartReduction& part_;
  size_t size_;
  uint8_t* ring_;
  IncomingBlocks blocks_;
  size_t bytes_ = 0; /* of received elements */
};

PartReduction::PartReduction(const Call& call, hopsml_reduction reduction, size_t members, const void* own, void* out, size_t count,
                             Memory& memory)
    : memory_(memory),
      type_(hopsml_type(call.header.type)),
      reduction_(reduction),
      wire_(wire_of(call.header)),
      own_(static_cast<const uint8_t*>(own)),
      out_(static_cast<uint8_t*>(out)),
      element_(element_size(type_)),
      count_(count),
      contributions_(members, nullptr),
      sources_(members) {
  if (memory_.windows.size() < members) memory_.windows.resize(members);
  if (wire_ != HOPSML_WIRE_SAME) encoded_ = memory_.encoded.of(encoded_size(wire_, count));
}

PartReduction::~PartReduction() = default;

std::unique_ptr<Sink> PartReduction::sink(size_t index) {
  auto made = std::make_unique<Contribution>(*this, memory_.windows[index]);
  contributions_[index] = made.get();
  return made;
}

std::unique_ptr<Source> PartReduction::result_source() {
  if (wire_ != HOPSML_WIRE_SAME) return std::make_unique<MemorySource>(encoded_, encoded_size(wire_, count_), &result_bytes_);
  return std::make_unique<MemorySource>(out_, count_ * element_, &result_bytes_);
}

void PartReduction::arrived() {
  size_t least = count_;
  const Contribution* any = nullptr;
  for (const Contribution* one : contributions_)
    if (one != nullptr) least = std::min(least, (any = one)->elements());
  while (least - reduced_ >= kWorthwhile || (least == count_ && reduced_ < least)) {
    size_t until_turn = any->ring_elements() - reduced_ % any->ring_elements();
    size_t count = std::min(least - reduced_, until_turn);
    if (wire_ != HOPSML_WIRE_SAME) count = std::min(count, kWireBlock);
    reduce_next(count);
  }
}

void PartReduction::reduce_next(size_t count) {
  for (size_t i = 0; i < contributions_.size(); i++)
    sources_[i] = contributions_[i] != nullptr ? contributions_[i]->element(reduced_) : own_ + reduced_ * element_;
  uint8_t* target = out_ + reduced_ * element_;
  reduce(type_, reduction_, sources_.data(), sources_.size(), target, count);
  if (wire_ != HOPSML_WIRE_SAME) { /* the owner, too, uses the values that the others receive */
    uint8_t* block = encoded_ + encoded_size(wire_, reduced_);
    encode_block(wire_, reinterpret_cast<float*>(target), count, block);
    decode_block(wire_, block, count, reinterpret_cast<float*>(target));
  }
  reduced_ += count;
  result_bytes_ = wire_ != HOPSML_WIRE_SAME ? encoded_size(wire_, reduced_) : reduced_ * element_;
}

}  // namespace hopsml

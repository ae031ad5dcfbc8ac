#include "part_reduction.h"

#include <algorithm>

#include "element_types.h"
#include "memory_streams.h"
#include "reduce_kernels.h"
#include "wire_formats.h"

namespace hopsml {
namespace {

constexpr size_t kWindow = 16 * kWireBlock; /* elements of one member that wait for the others' */
constexpr size_t kWorthwhile = 2048;        /* elements to reduce at a time, unless they are the last */

/* Elements, block by block in 16 bits. */
class EncodingSource : public Source {
 public:
  EncodingSource(hopsml_wire wire, const float* elements, size_t count)
      : wire_(wire), elements_(elements), left_(count), block_(encoded_size(wire, std::min(count, kWireBlock))) {}

  Span next() override {
    if (at_ == held_ && left_ > 0) {
      size_t count = std::min(left_, kWireBlock);
      encode_block(wire_, elements_, count, block_.data());
      elements_ += count, left_ -= count;
      at_ = 0, held_ = encoded_size(wire_, count);
    }
    return {block_.data() + at_, held_ - at_};
  }
  void went(size_t size) override { at_ += size; }
  bool done() const override { return left_ == 0 && at_ == held_; }

 private:
  hopsml_wire wire_;
  const float* elements_;
  size_t left_, at_ = 0, held_ = 0;
  std::vector<uint8_t> block_;
};

class DecodingSink : public Sink {
 public:
  DecodingSink(hopsml_wire wire, float* elements, size_t count)
      : wire_(wire), elements_(elements), left_(count), block_(encoded_size(wire, std::min(count, kWireBlock))) {}

  Span room() override { return {block_.data() + held_, wanted() - held_}; }
  void came(size_t size) override {
    held_ += size;
    if (held_ < wanted()) return;
    size_t count = std::min(left_, kWireBlock);
    decode_block(wire_, block_.data(), count, elements_);
    elements_ += count, left_ -= count, held_ = 0;
  }
  bool done() const override { return left_ == 0; }

 private:
  size_t wanted() const { return encoded_size(wire_, std::min(left_, kWireBlock)); }

  hopsml_wire wire_;
  float* elements_;
  size_t left_, held_ = 0;
  std::vector<uint8_t> block_;
};

hopsml_wire wire_of(const Call& call) { return hopsml_wire(call.header.wire); }

}  // namespace

std::unique_ptr<Source> contribution_source(const Call& call, const void* elements, size_t count) {
  if (wire_of(call) != HOPSML_WIRE_SAME)
    return std::make_unique<EncodingSource>(wire_of(call), static_cast<const float*>(elements), count);
  return std::make_unique<MemorySource>(elements, count * element_size(hopsml_type(call.header.type)));
}

std::unique_ptr<Sink> result_sink(const Call& call, void* elements, size_t count) {
  if (wire_of(call) != HOPSML_WIRE_SAME)
    return std::make_unique<DecodingSink>(wire_of(call), static_cast<float*>(elements), count);
  return std::make_unique<MemorySink>(elements, count * element_size(hopsml_type(call.header.type)));
}

/* What one member has of this part, of which a window is held here, in elements that can be counted with. */
class PartReduction::Contribution : public Sink {
 public:
  explicit Contribution(PartReduction& part)
      : part_(part), ring_(std::min(part.count_, kWindow) * part.element_) {
    if (encodes()) block_.resize(encoded_size(part.wire_, std::min(part.count_, kWireBlock)));
  }

  Span room() override {
    if (done()) return {};
    if (!encodes()) {
      size_t begin = bytes_ % ring_.size();
      return {ring_.data() + begin, std::min({total() - bytes_, free(), ring_.size() - begin})};
    }
    size_t count = block_count();
    if (free() < count * part_.element_) return {};
    return {block_.data() + held_, encoded_size(part_.wire_, count) - held_};
  }

  void came(size_t size) override {
    if (!encodes()) {
      bytes_ += size;
    } else {
      held_ += size;
      size_t count = block_count();
      if (held_ < encoded_size(part_.wire_, count)) return;
      decode_block(part_.wire_, block_.data(), count, reinterpret_cast<float*>(ring_.data() + bytes_ % ring_.size()));
      bytes_ += count * part_.element_;
      held_ = 0;
    }
    part_.arrived();
  }

  bool done() const override { return bytes_ == total(); }

  size_t elements() const { return bytes_ / part_.element_; }
  const void* element(size_t index) const { return ring_.data() + index * part_.element_ % ring_.size(); }
  size_t ring_elements() const { return ring_.size() / part_.element_; }

 private:
  bool encodes() const { return part_.wire_ != HOPSML_WIRE_SAME; }
  size_t total() const { return part_.count_ * part_.element_; }
  size_t free() const { return ring_.size() - (bytes_ - part_.reduced_ * part_.element_); }
  size_t block_count() const { return std::min(kWireBlock, part_.count_ - elements()); }

  PartReduction& part_;
  std::vector<uint8_t> ring_, block_;
  size_t bytes_ = 0; /* of elements that have come */
  size_t held_ = 0;  /* of a block that is not whole */
};

PartReduction::PartReduction(const Call& call, hopsml_reduction reduction, size_t members, const void* own, void* out, size_t count)
    : type_(hopsml_type(call.header.type)),
      reduction_(reduction),
      wire_(wire_of(call)),
      own_(static_cast<const uint8_t*>(own)),
      out_(static_cast<uint8_t*>(out)),
      element_(element_size(type_)),
      count_(count),
      contributions_(members, nullptr),
      sources_(members) {
  if (wire_ != HOPSML_WIRE_SAME) encoded_.resize(encoded_size(wire_, count));
}

PartReduction::~PartReduction() = default;

std::unique_ptr<Sink> PartReduction::sink(size_t index) {
  auto made = std::make_unique<Contribution>(*this);
  contributions_[index] = made.get();
  return made;
}

std::unique_ptr<Source> PartReduction::result_source() {
  if (wire_ != HOPSML_WIRE_SAME) return std::make_unique<MemorySource>(encoded_.data(), encoded_.size(), &result_bytes_);
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
  if (wire_ != HOPSML_WIRE_SAME) { /* the owner, too, has what the others get */
    uint8_t* block = encoded_.data() + encoded_size(wire_, reduced_);
    encode_block(wire_, reinterpret_cast<float*>(target), count, block);
    decode_block(wire_, block, count, reinterpret_cast<float*>(target));
  }
  reduced_ += count;
  result_bytes_ = wire_ != HOPSML_WIRE_SAME ? encoded_size(wire_, reduced_) : reduced_ * element_;
}

}  // namespace hopsml

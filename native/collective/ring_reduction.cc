#include "ring_reduction.h"

#include "element_types.h"
#include "memory_streams.h"
#include "parts.h"
#include "reducing_sink.h"

namespace hopsml {

RingReduction::RingReduction(const Call& call, hopsml_reduction reduction, size_t index, size_t members, const void* in, void* out)
    : type_(hopsml_type(call.header.type)),
      reduction_(reduction),
      index_(index),
      members_(members),
      count_(call.header.count),
      in_(static_cast<const uint8_t*>(in)),
      out_(static_cast<uint8_t*>(out)),
      ready_(steps(), 0) {}

std::unique_ptr<Source> RingReduction::source() {
  auto all = std::make_unique<SourceChain>();
  size_t each = element_size(type_);
  for (size_t step = 0; step < steps(); step++) {
    Part part = part_of(count_, members_, part_sent(step));
    const uint8_t* from = step == 0 ? in_ : out_;
    all->add(std::make_unique<MemorySource>(from + part.begin * each, part.count * each, step == 0 ? nullptr : &ready_[step - 1]));
  }
  return all;
}

std::unique_ptr<Sink> RingReduction::sink() {
  auto all = std::make_unique<SinkChain>();
  size_t each = element_size(type_);
  bool is_mean = reduction_ == HOPSML_MEAN;
  for (size_t step = 0; step < steps(); step++) {
    Part part = part_of(count_, members_, part_sent(step + 1));
    size_t begin = part.begin * each;
    if (step + 1 >= members_) {
      all->add(std::make_unique<MemorySink>(out_ + begin, part.count * each, &ready_[step]));
      continue;
    }
    bool is_whole = step + 2 == members_;
    Pairing pairing{type_, is_mean ? HOPSML_SUM : reduction_, false, is_mean && is_whole ? members_ : 1};
    all->add(std::make_unique<ReducingSink>(pairing, in_ + begin, out_ + begin, part.count, aside_, &ready_[step]));
  }
  return all;
}

}  // namespace hopsml

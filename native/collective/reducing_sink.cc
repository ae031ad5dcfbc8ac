#include "reducing_sink.h"

#include <algorithm>
#include <cstring>

#include "element_types.h"
#include "reduce_kernels.h"

namespace hopsml {
namespace {

constexpr size_t kAside = 128 << 10; /* bytes: received data is still in a near cache when it is reduced */

}  // namespace

ReducingSink::ReducingSink(const Pairing& pairing, const void* own, void* target, size_t count, std::vector<uint8_t>& aside,
                           size_t* ready)
    : pairing_(pairing),
      own_(static_cast<const uint8_t*>(own)),
      target_(static_cast<uint8_t*>(target)),
      element_(element_size(pairing.type)),
      size_(count * element_),
      aside_(aside),
      ready_(ready) {
  if (aside_.size() < kAside) aside_.resize(kAside);
}

Span ReducingSink::room() { return {aside_.data() + held_, std::min(kAside, size_ - reduced_) - held_}; }

void ReducingSink::came(size_t size) {
  held_ += size;
  size_t count = held_ / element_, bytes = count * element_;
  if (count == 0) return;
  const void* sources[] = {aside_.data(), own_ + reduced_};
  if (pairing_.own_first) std::swap(sources[0], sources[1]);
  uint8_t* target = target_ + reduced_;
  reduce(pairing_.type, pairing_.reduction, sources, 2, target, count);
  if (pairing_.divisor > 1) divide(pairing_.type, target, count, pairing_.divisor);
  held_ -= bytes;
  std::memmove(aside_.data(), aside_.data() + bytes, held_);
  reduced_ += bytes;
  if (ready_ != nullptr) *ready_ = reduced_;
}

}  // namespace hopsml

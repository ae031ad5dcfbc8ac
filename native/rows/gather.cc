#include "gather.h"

#include <algorithm>
#include <cstring>

namespace {

constexpr uint64_t kAhead = 8;   /* rows that are prefetched before they are copied */
constexpr uint64_t kLine = 64;   /* bytes of a cache line */
/* bytes of a row that are prefetched: for longer ones the processor prefetches the rest */
constexpr uint64_t kMost = 4096;

const uint8_t* row_of(const uint8_t* const* arrays, const hopsml_places& places, uint64_t place, uint64_t size) {
  return arrays[places.shards[place]] + uint64_t(places.rows[place]) * size;
}

/* Gathers rows of a size known at compile time: one number each. */
template <uint64_t kSize>
void gather_numbers(const uint8_t* const* arrays, const hopsml_places& places, uint64_t begin, uint64_t end, uint8_t* out) {
  for (uint64_t place = begin; place < end; ++place, out += kSize) {
    std::memcpy(out, row_of(arrays, places, place, kSize), kSize);
  }
}

void gather_long(const uint8_t* const* arrays, const hopsml_places& places, uint64_t begin, uint64_t end, uint64_t size,
                 uint8_t* out) {
  for (uint64_t place = begin; place < end; ++place, out += size) {
    if (place + kAhead < end) {
      const uint8_t* coming = row_of(arrays, places, place + kAhead, size);
      for (uint64_t at = 0; at < std::min(size, kMost); at += kLine) __builtin_prefetch(coming + at, 0, 0);
    }
    std::memcpy(out, row_of(arrays, places, place, size), size);
  }
}

void gather_column(const uint8_t* const* arrays, const hopsml_places& places, uint64_t begin, uint64_t end, uint64_t size,
                   uint8_t* out) {
  switch (size) {
    case 1: return gather_numbers<1>(arrays, places, begin, end, out);
    case 2: return gather_numbers<2>(arrays, places, begin, end, out);
    case 4: return gather_numbers<4>(arrays, places, begin, end, out);
    case 8: return gather_numbers<8>(arrays, places, begin, end, out);
    default: return gather_long(arrays, places, begin, end, size, out);
  }
}

}  // namespace

extern "C" __attribute__((visibility("default"))) void hopsml_gather_rows(const hopsml_columns* from,
                                                                          const hopsml_places* places, uint64_t begin,
                                                                          uint64_t end, uint8_t* const* out) {
  for (uint64_t column = 0; column < from->columns; ++column) {
    gather_column(from->arrays + column * from->shards, *places, begin, end, from->sizes[column], out[column]);
  }
}

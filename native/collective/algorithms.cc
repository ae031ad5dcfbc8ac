#include "algorithms.h"

#include "element_types.h"

namespace hopsml {
namespace {

/* Up to here an array goes whole: a message more costs what its bytes cost. */
constexpr size_t kSmall = 16 << 10;        /* bytes */
constexpr size_t kMostGathered = 64 << 10; /* bytes that one member gets in all where everything goes to everybody */

/* Measured between hosts at 1 Gbit/s, 0.1 and 1 ms apart (benchmarks/results/network.md). Where more than a few send to one at
 * once, queues overflow, the more the larger what they send; a ring has one sender for each, but many steps. */
constexpr size_t kFew = 4;                 /* members that may always exchange directly */
constexpr size_t kWorthARound = 128 << 10; /* bytes for each member, from which on a ring of more is worth its steps */
constexpr size_t kMany = 16;               /* members of whom more never exchange directly */
constexpr size_t kTiny = 2 << 10;          /* bytes that so many as that may */
constexpr size_t kUneven = 8;              /* members beyond a power of two: of more small arrays still go in pairs */

/* Every member that adds rounds to 16 bits: that happens once, or not at all. */
bool is_rounded_on_its_way(const CallHeader& header) {
  return header.wire != HOPSML_WIRE_SAME || header.type == HOPSML_FLOAT16 || header.type == HOPSML_BFLOAT16;
}

hopsml_algorithm chosen(size_t bytes, size_t members) {
  if (members <= kFew) return HOPSML_DIRECT;
  if (bytes >= kWorthARound * members) return HOPSML_RING;
  if (members > kMany) return HOPSML_PAIRWISE;
  bool pairs_up = (members & (members - 1)) == 0 || (members > kUneven && bytes <= kSmall);
  return pairs_up && bytes > kTiny ? HOPSML_PAIRWISE : HOPSML_DIRECT;
}

}  // namespace

Algorithm algorithm_for(hopsml_algorithm asked, const Call& call, size_t members) {
  size_t bytes = size_t(call.header.count) * element_size(hopsml_type(call.header.type));
  bool is_small = bytes <= kSmall;
  hopsml_algorithm way = asked == HOPSML_AUTO ? chosen(bytes, members) : asked;
  if (way == HOPSML_DIRECT || is_rounded_on_its_way(call.header))
    return is_small && bytes * (members - 1) <= kMostGathered ? Algorithm::kGathered : Algorithm::kDirect;
  if (way == HOPSML_RING) return Algorithm::kRing;
  return is_small ? Algorithm::kDoubled : Algorithm::kHalved;
}

Call on_its_way(const Call& call, Algorithm algorithm) {
  Call told = call;
  told.header.wire = uint8_t(wire_of(call.header) | int(algorithm) << 4);
  return told;
}

}  // namespace hopsml

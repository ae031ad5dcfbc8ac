#include "algorithms.h"

#include "element_types.h"

namespace hopsml {
namespace {

/* Arrays up to this size are sent whole: one message more costs as much as its bytes. */
constexpr size_t kSmall = 16 << 10;        /* bytes */
constexpr size_t kMostGathered = 64 << 10; /* bytes that one member receives in all if all members send to all */

/* Measured between hosts at 1 Gbit/s, 0.1 and 1 ms apart (benchmarks/results/network.md). If more than a few members
 * send to one at once, queues overflow, the more the larger the messages; in a ring each has one sender, but there are
 * many steps. */
constexpr size_t kFew = 4;                 /* members that may always exchange directly */
constexpr size_t kWorthARound = 128 << 10; /* bytes per member above which a ring of more members is worth its steps */
constexpr size_t kMany = 16;               /* more members than this never exchange directly */
constexpr size_t kTiny = 2 << 10;          /* bytes up to which that many members exchange directly */
/* members beyond a power of two: above this number small arrays still use the pairwise algorithm */
constexpr size_t kUneven = 8;

/* Each member that adds rounds to 16 bits, so a value must be added once only. */
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

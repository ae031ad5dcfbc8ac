/* What an operation is, as its members tell each other before the first byte of its data. */
#ifndef HOPSML_COLLECTIVE_CALL_H
#define HOPSML_COLLECTIVE_CALL_H

#include <string>

#include "collective.h"

namespace hopsml {

enum Operation : uint8_t { kBarrier = 0, kAllReduce = 1, kAllGather = 2, kBroadcast = 3, kReduceScatter = 4 };

/* As it is sent. Equal calls are equal bytes, but for the last one. */
struct CallHeader {
  uint32_t magic;
  uint8_t operation, type, reduction, wire; /* wire: in its upper half the way that data takes, as members have to agree on it */
  int32_t root;
  uint32_t name_size; /* of the whole name */
  uint64_t number;    /* of the call in its group, from 1 */
  uint64_t count;
  uint64_t name_hash; /* of the whole name */
  char name[87];      /* its beginning; zeros after it */
  uint8_t pause;      /* whether the sender has been asked to pause, or knows of one that has; it is no part of what the call is */
};
static_assert(sizeof(CallHeader) == 128, "no padding");

/* An operation under way here, and until when it may take. */
struct Call {
  CallHeader header{};
  double deadline = 0;
  double grace = 0; /* seconds before the deadline in which the others are asked whether they take part */
};

CallHeader call_header(Operation operation, uint64_t count, hopsml_type type, hopsml_reduction reduction, hopsml_wire wire,
                       int32_t root, const char* name);
inline hopsml_wire wire_of(const CallHeader& header) { return hopsml_wire(header.wire & 15); }
bool same_call(const CallHeader& a, const CallHeader& b);
/* "all_reduce of 10 float32 (sum) 'dense/kernel'"; of any bytes. */
std::string describe(const CallHeader& header);
/* The Trouble of two members that called different operations; nothing when they are the same. */
void check_same(const CallHeader& own, int32_t own_rank, const CallHeader& other, int32_t other_rank);

}  // namespace hopsml

#endif

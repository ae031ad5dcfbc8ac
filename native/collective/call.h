/* Description of an operation, which its members send to each other before the first byte of its data. */
#ifndef HOPSML_COLLECTIVE_CALL_H
#define HOPSML_COLLECTIVE_CALL_H

#include <string>

#include "collective.h"

namespace hopsml {

enum Operation : uint8_t { kBarrier = 0, kAllReduce = 1, kAllGather = 2, kBroadcast = 3, kReduceScatter = 4 };

/* The header as it is sent. Equal calls have equal bytes, except for the last one. */
struct CallHeader {
  uint32_t magic;
  uint8_t operation, type, reduction, wire; /* wire: the upper half is the algorithm, on which members have to agree */
  int32_t root;
  uint32_t name_size; /* of the whole name */
  uint64_t number;    /* number of the call in its group, from 1 */
  uint64_t count;
  uint64_t name_hash; /* of the whole name */
  char name[87];      /* beginning of the name, padded with zeros */
  /* whether the sender has been asked to pause, or knows of a member that has; not compared between members */
  uint8_t pause;
};
static_assert(sizeof(CallHeader) == 128, "no padding");

/* An operation in progress on this member, with its deadline. */
struct Call {
  CallHeader header{};
  double deadline = 0;
  double grace = 0; /* seconds before the deadline in which the others are asked whether they take part */
};

CallHeader call_header(Operation operation, uint64_t count, hopsml_type type, hopsml_reduction reduction, hopsml_wire wire,
                       int32_t root, const char* name);
inline hopsml_wire wire_of(const CallHeader& header) { return hopsml_wire(header.wire & 15); }
bool same_call(const CallHeader& a, const CallHeader& b);
/* Returns a text such as "all_reduce of 10 float32 (sum) 'dense/kernel'", for any header bytes. */
std::string describe(const CallHeader& header);
/* Throws the Trouble of two members that called different operations; does nothing if they are the same. */
void check_same(const CallHeader& own, int32_t own_rank, const CallHeader& other, int32_t other_rank);

}  // namespace hopsml

#endif

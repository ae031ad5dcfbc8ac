#include "call.h"

#include <algorithm>
#include <cstddef>
#include <cstring>

#include "element_types.h"
#include "trouble.h"

namespace hopsml {
namespace {

constexpr uint32_t kMagic = 0x4c4c4143; /* "CALL" */

const char* name_of(uint8_t operation) {
  switch (operation) {
    case kBarrier: return "barrier";
    case kAllReduce: return "all_reduce";
    case kAllGather: return "all_gather";
    case kBroadcast: return "broadcast";
    case kReduceScatter: return "reduce_scatter";
    default: return "an unknown operation";
  }
}

const char* reduction_name(uint8_t reduction) {
  static const char* const names[] = {"sum", "mean", "min", "max"};
  return reduction < 4 ? names[reduction] : "an unknown reduction";
}

const char* way_name(int way) {
  static const char* const names[] = {"", "", ", in pairs", ", in pairs by halves", ", in a ring"};
  return way < 5 ? names[way] : ", in an unknown way";
}

const char* wire_name(uint8_t wire) {
  static const char* const names[] = {"", ", sent as float16", ", sent as bfloat16"};
  return wire < 3 ? names[wire] : ", sent in an unknown format";
}

}  // namespace

CallHeader call_header(Operation operation, uint64_t count, hopsml_type type, hopsml_reduction reduction, hopsml_wire wire,
                       int32_t root, const char* name) {
  CallHeader header{};
  header.magic = kMagic;
  header.operation = operation;
  header.type = uint8_t(type), header.reduction = uint8_t(reduction), header.wire = uint8_t(wire);
  header.root = root;
  header.count = count;
  size_t size = name == nullptr ? 0 : std::strlen(name);
  header.name_size = uint32_t(size);
  header.name_hash = 14695981039346656037u; /* FNV-1a */
  for (size_t i = 0; i < size; i++) header.name_hash = (header.name_hash ^ uint8_t(name[i])) * 1099511628211u;
  if (size > 0) std::memcpy(header.name, name, std::min(size, sizeof header.name));
  return header;
}

/* Compares whole words: each call compares as many headers as there are members. */
bool same_call(const CallHeader& a, const CallHeader& b) {
  constexpr size_t kWords = sizeof(CallHeader) / sizeof(uint64_t);
  constexpr uint64_t kWithoutPause = ~uint64_t{0} >> 8;
  static_assert(offsetof(CallHeader, pause) == sizeof(CallHeader) - 1, "the last byte of the last word");
  uint64_t x[kWords], y[kWords];
  std::memcpy(x, &a, sizeof x);
  std::memcpy(y, &b, sizeof y);
  uint64_t difference = (x[kWords - 1] ^ y[kWords - 1]) & kWithoutPause;
  for (size_t i = 0; i + 1 < kWords; i++) difference |= x[i] ^ y[i];
  return difference == 0;
}

std::string describe(const CallHeader& header) {
  if (header.magic != kMagic) return "something that is no call";
  std::string text = name_of(header.operation);
  if (header.operation != kBarrier)
    text += " of " + std::to_string(header.count) + " " + type_name(hopsml_type(header.type));
  if (header.operation == kAllReduce || header.operation == kReduceScatter)
    text += std::string(" (") + reduction_name(header.reduction) + wire_name(wire_of(header)) + way_name(header.wire >> 4) + ")";
  if (header.operation == kBroadcast) text += " of rank " + std::to_string(header.root);
  size_t shown = std::min<size_t>(header.name_size, sizeof header.name);
  if (shown > 0) {
    std::string name(header.name, shown);
    std::replace_if(name.begin(), name.end(), [](char c) { return uint8_t(c) < ' '; }, '?');
    text += " '" + name + (shown < header.name_size ? "...'" : "'");
  }
  return text + ", call " + std::to_string(header.number);
}

void check_same(const CallHeader& own, int32_t own_rank, const CallHeader& other, int32_t other_rank) {
  if (same_call(own, other)) return;
  throw Trouble{HOPSML_MISMATCH, other_rank,
                "members called different operations: rank " + std::to_string(other_rank) + " " + describe(other) +
                    "; rank " + std::to_string(own_rank) + " " + describe(own)};
}

}  // namespace hopsml

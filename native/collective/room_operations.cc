#include "room_operations.h"

#include "element_types.h"
#include "reduce_kernels.h"

namespace hopsml {
namespace {

constexpr size_t kSmall = 16 << 10; /* bytes up to which each member reduces everything: one gate, not two */
constexpr size_t kLine = 64;        /* bytes of a cache line: no two members write into one */
constexpr size_t kHot = 32 << 10;   /* bytes that are still in the nearest cache when they are copied */

hopsml_type type_of(const Call& call) { return hopsml_type(call.header.type); }

hopsml_reduction reduction_of(const Call& call) { return hopsml_reduction(call.header.reduction); }

size_t element_of(const Call& call) { return element_size(type_of(call)); }

/* Like part_of, but in whole cache lines. */
Part lines_of(size_t count, size_t parts, size_t index) {
  Part lines = part_of((count + kLine - 1) / kLine, parts, index);
  size_t begin = std::min(count, lines.begin * kLine), end = std::min(count, (lines.begin + lines.count) * kLine);
  return {begin, end - begin};
}

}  // namespace

bool RoomOperations::is_small(const CallHeader& header) {
  return header.count * element_size(hopsml_type(header.type)) <= kSmall;
}

/* Passes the first gate of a call. */
void RoomOperations::pass(const Call& call) {
  room_.post(call);
  room_.wait(room_.arrive(), watch_, call);
  room_.check_posted(call);
}

void RoomOperations::barrier(const Call& call) { pass(call); }

void RoomOperations::reduce_small(const Call& call, hopsml_reduction reduction, const uint8_t* in, uint8_t* out) {
  size_t count = call.header.count;
  std::memcpy(own(round_), in, count * element_of(call));
  pass(call);
  for (size_t i = 0; i < sources_.size(); i++) sources_[i] = i == room_.index() ? in : room_.buffer(i, round_);
  reduce(type_of(call), reduction, sources_.data(), sources_.size(), out, count);
  round_++;
}

void RoomOperations::all_reduce(const Call& call, hopsml_reduction reduction, const void* in, void* out) {
  auto* from = static_cast<const uint8_t*>(in);
  auto* to = static_cast<uint8_t*>(out);
  size_t total = call.header.count, each = element_of(call), most = Room::kBuffer / each;
  if (is_small(call.header)) return reduce_small(call, reduction, from, to);
  auto elements_from = [&](size_t begin) { return Part{begin, std::min(most, total - begin)}; };
  room_.post(call);
  stage(call, from, elements_from(0), round_);
  uint32_t staged = room_.arrive();
  for (size_t begin = 0; begin < total; begin += most, round_++) {
    size_t next = begin + most;
    room_.wait(staged, watch_, call);
    if (begin == 0) room_.check_posted(call);
    reduce_own(call, reduction, from, to, elements_from(begin), round_);
    uint32_t reduced = room_.arrive();
    if (next < total) {
      stage(call, from, elements_from(next), round_ + 1);
      staged = room_.arrive();
    }
    room_.wait(reduced, watch_, call);
    gather(call, to, elements_from(begin), round_);
  }
}

/* Copies the elements that others reduce to where they read them. */
void RoomOperations::stage(const Call& call, const uint8_t* in, Part elements, uint64_t round) {
  size_t each = element_of(call);
  Part kept = lines_of(elements.count, room_.members(), room_.index());
  const uint8_t* from = in + elements.begin * each;
  size_t behind = kept.begin + kept.count;
  std::memcpy(own(round), from, kept.begin * each);
  std::memcpy(own(round) + behind * each, from + behind * each, (elements.count - behind) * each);
}

void RoomOperations::reduce_own(const Call& call, hopsml_reduction reduction, const uint8_t* in, uint8_t* out, Part elements, uint64_t round) {
  size_t each = element_of(call), hot = kHot / each;
  Part part = lines_of(elements.count, room_.members(), room_.index());
  for (size_t begin = part.begin; begin < part.begin + part.count; begin += hot) {
    size_t count = std::min(hot, part.begin + part.count - begin), offset = (elements.begin + begin) * each;
    for (size_t i = 0; i < sources_.size(); i++)
      sources_[i] = i == room_.index() ? in + offset : room_.buffer(i, round) + begin * each;
    uint8_t* target = own(round) + begin * each;
    reduce(type_of(call), reduction, sources_.data(), sources_.size(), target, count);
    std::memcpy(out + offset, target, count * each);
  }
}

void RoomOperations::gather(const Call& call, uint8_t* out, Part elements, uint64_t round) {
  size_t each = element_of(call);
  for (size_t step = 1; step < room_.members(); step++) {
    size_t member = (room_.index() + step) % room_.members();
    Part part = lines_of(elements.count, room_.members(), member);
    std::memcpy(out + (elements.begin + part.begin) * each, room_.buffer(member, round) + part.begin * each, part.count * each);
  }
}

void RoomOperations::all_gather(const Call& call, const void* in, void* out) {
  size_t total = call.header.count * element_of(call);
  auto* to = static_cast<uint8_t*>(out);
  std::memmove(to + total * room_.index(), in, total); /* `in` may begin where `out` does */
  const uint8_t* from = to + total * room_.index();
  for (size_t begin = 0; begin == 0 || begin < total; begin += Room::kBuffer, round_++) {
    size_t size = std::min(Room::kBuffer, total - begin);
    std::memcpy(own(round_), from + begin, size);
    if (begin == 0)
      pass(call);
    else
      room_.wait(room_.arrive(), watch_, call);
    for (size_t i = 0; i < room_.members(); i++)
      if (i != room_.index()) std::memcpy(to + total * i + begin, room_.buffer(i, round_), size);
  }
}

void RoomOperations::broadcast(const Call& call, const void* in, void* out, size_t root) {
  size_t total = call.header.count * element_of(call);
  bool gives = room_.index() == root;
  for (size_t begin = 0; begin == 0 || begin < total; begin += Room::kBuffer, round_++) {
    size_t size = std::min(Room::kBuffer, total - begin);
    if (gives) std::memcpy(own(round_), static_cast<const uint8_t*>(in) + begin, size);
    if (begin == 0)
      pass(call);
    else
      room_.wait(room_.arrive(), watch_, call);
    if (!gives) std::memcpy(static_cast<uint8_t*>(out) + begin, room_.buffer(root, round_), size);
  }
  if (gives && in != out) std::memmove(out, in, total);
}

void RoomOperations::reduce_scatter(const Call& call, const void* in, void* out) {
  size_t count = call.header.count, each = element_of(call), most = Room::kBuffer / each / room_.members();
  auto* from = static_cast<const uint8_t*>(in);
  auto* to = static_cast<uint8_t*>(out);
  bool overlaps = to < from + count * each * room_.members() && from < to + count * each;
  std::vector<uint8_t> aside(overlaps ? count * each : 0); /* the overwritten elements may be needed by another rank */
  if (overlaps) to = aside.data();
  for (size_t begin = 0; begin == 0 || begin < count; begin += most, round_++) {
    size_t size = std::min(most, count - begin);
    for (size_t i = 0; i < room_.members(); i++)
      if (i != room_.index()) std::memcpy(own(round_) + i * most * each, from + (i * count + begin) * each, size * each);
    if (begin == 0)
      pass(call);
    else
      room_.wait(room_.arrive(), watch_, call);
    for (size_t i = 0; i < room_.members(); i++)
      sources_[i] = i == room_.index() ? from + (i * count + begin) * each : room_.buffer(i, round_) + room_.index() * most * each;
    reduce(type_of(call), reduction_of(call), sources_.data(), sources_.size(), to + begin * each, size);
  }
  if (overlaps) std::memcpy(out, aside.data(), count * each);
}

}  // namespace hopsml

#include "socket_operations.h"

#include "algorithms.h"
#include "element_types.h"
#include "memory_streams.h"
#include "neighbours.h"
#include "pairwise_reduction.h"
#include "parts.h"
#include "reduce_kernels.h"
#include "ring_reduction.h"

namespace hopsml {
namespace {

hopsml_type type_of(const Call& call) { return hopsml_type(call.header.type); }

size_t size_of(const Call& call) { return size_t(call.header.count) * element_size(type_of(call)); }

constexpr size_t kFew = 8; /* members up to which all are informed in one step */

uint8_t* at(void* memory, size_t offset) { return static_cast<uint8_t*>(memory) + offset; }

}  // namespace

Way SocketOperations::way(size_t step) const {
  Way way{};
  way.index = (index_ + step) % members();
  way.rank = ranks_[way.index];
  return way;
}

std::vector<Way> SocketOperations::ways() const {
  std::vector<Way> all;
  for (size_t step = 1; step < members(); step++) all.push_back(way(step));
  return all;
}

/* In each step a member exchanges with two others, at distance 1, then 3, then 9; after it, it knows of 3, 9, 27
 * members. */
bool SocketOperations::agree(const Call& call) {
  Call word = call;
  for (size_t heard_of = 1; heard_of < members(); heard_of = members() <= kFew ? members() : 3 * heard_of) {
    auto all = members() <= kFew ? ways() : neighbours(heard_of);
    streams_.run(all, word);
    for (const Way& one : all) word.header.pause |= one.received.pause;
  }
  return word.header.pause != 0;
}

std::vector<Way> SocketOperations::neighbours(size_t distance) const {
  std::vector<Way> both;
  both.push_back(way(distance));
  if (2 * distance != members()) both.push_back(way(members() - distance));
  return both;
}

void SocketOperations::barrier(const Call& call) { agree(call); }

void SocketOperations::gather(const Call& call, const void* in, void* out, size_t bytes) {
  uint8_t* own = at(out, bytes * index_);
  std::memmove(own, in, bytes);
  auto all = ways();
  for (Way& way : all) {
    way.source = std::make_unique<MemorySource>(own, bytes);
    way.sink = std::make_unique<MemorySink>(at(out, bytes * way.index), bytes);
  }
  streams_.run(all, call);
}

void SocketOperations::all_gather(const Call& call, const void* in, void* out) { gather(call, in, out, size_of(call)); }

void SocketOperations::broadcast(const Call& call, const void* in, void* out) {
  size_t bytes = size_of(call);
  auto all = ways();
  for (Way& way : all) {
    if (call.header.root == ranks_[index_]) way.source = std::make_unique<MemorySource>(in, bytes);
    if (call.header.root == way.rank) way.sink = std::make_unique<MemorySink>(out, bytes);
  }
  streams_.run(all, call);
  if (call.header.root == ranks_[index_] && in != out) std::memcpy(out, in, bytes);
}

void SocketOperations::reduce_gathered(const Call& call, hopsml_reduction reduction, const void* in, void* out) {
  size_t bytes = size_of(call);
  scratch_.resize(bytes * members());
  gather(call, in, scratch_.data(), bytes);
  std::vector<const void*> sources;
  for (size_t i = 0; i < members(); i++) sources.push_back(scratch_.data() + bytes * i);
  reduce(type_of(call), reduction, sources.data(), sources.size(), out, call.header.count);
}

void SocketOperations::all_reduce(const Call& call, hopsml_reduction reduction, const void* in, void* out) {
  Algorithm algorithm = algorithm_for(algorithm_, call, members());
  Call told = on_its_way(call, algorithm);
  switch (algorithm) {
    case Algorithm::kGathered: return reduce_gathered(told, reduction, in, out);
    case Algorithm::kDirect: return reduce_directly(told, reduction, in, out);
    case Algorithm::kRing: return reduce_in_ring(told, reduction, in, out);
    case Algorithm::kDoubled:
    case Algorithm::kHalved:
      if (in != out && size_of(call) > 0) std::memcpy(out, in, size_of(call));
      PairwiseReduction(told, reduction, index_, ranks_, streams_, scratch_).run(out, algorithm == Algorithm::kDoubled);
  }
}

void SocketOperations::reduce_directly(const Call& call, hopsml_reduction reduction, const void* in, void* out) {
  size_t each = element_size(type_of(call));
  auto* from = static_cast<const uint8_t*>(in);
  Part own = part_of(call.header.count, members(), index_);
  PartReduction own_part(call, reduction, members(), from + own.begin * each, at(out, own.begin * each), own.count, part_memory_);
  auto all = ways();
  for (Way& way : all) {
    Part part = part_of(call.header.count, members(), way.index);
    auto source = std::make_unique<SourceChain>();
    source->add(contribution_source(call, from + part.begin * each, part.count));
    source->add(own_part.result_source());
    auto sink = std::make_unique<SinkChain>();
    sink->add(own_part.sink(way.index));
    sink->add(result_sink(call, at(out, part.begin * each), part.count));
    way.source = std::move(source), way.sink = std::move(sink);
  }
  streams_.run(all, call);
}

void SocketOperations::reduce_in_ring(const Call& call, hopsml_reduction reduction, const void* in, void* out) {
  RingReduction ring(call, reduction, index_, members(), in, out);
  auto round = with_neighbours(index_, ranks_, ring.source(), ring.sink());
  streams_.run(round, call);
}

void SocketOperations::reduce_scatter(const Call& call, const void* in, void* out) {
  size_t bytes = size_of(call);
  auto* first = static_cast<const uint8_t*>(in);
  auto* target = static_cast<uint8_t*>(out);
  bool overlaps = target < first + bytes * members() && first < target + bytes;
  if (overlaps) scratch_.resize(bytes);
  PartReduction own_part(call, hopsml_reduction(call.header.reduction), members(), first + bytes * index_,
                         overlaps ? scratch_.data() : out, call.header.count, part_memory_);
  auto all = ways();
  for (Way& way : all) {
    way.source = contribution_source(call, first + bytes * way.index, call.header.count);
    way.sink = own_part.sink(way.index);
  }
  streams_.run(all, call);
  if (overlaps) std::memcpy(out, scratch_.data(), bytes);
}

}  // namespace hopsml

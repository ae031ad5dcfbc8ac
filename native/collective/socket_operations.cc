#include "socket_operations.h"

#include "element_types.h"
#include "memory_streams.h"
#include "part_reduction.h"
#include "parts.h"
#include "reduce_kernels.h"

namespace hopsml {
namespace {

constexpr size_t kSmall = 16 << 10; /* bytes; up to here everything goes to everybody, who all reduce it: one step, not two */

hopsml_type type_of(const Call& call) { return hopsml_type(call.header.type); }

size_t size_of(const Call& call) { return size_t(call.header.count) * element_size(type_of(call)); }

uint8_t* at(void* memory, size_t offset) { return static_cast<uint8_t*>(memory) + offset; }

}  // namespace

std::vector<Way> SocketOperations::ways() const {
  std::vector<Way> all;
  for (size_t step = 1; step < members(); step++) {
    Way way{};
    way.index = (index_ + step) % members();
    way.rank = ranks_[way.index];
    all.push_back(std::move(way));
  }
  return all;
}

void SocketOperations::barrier(const Call& call) {
  auto all = ways();
  streams_.run(all, call);
}

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
  if (size_of(call) <= kSmall) return reduce_gathered(call, reduction, in, out);
  size_t each = element_size(type_of(call));
  Part own = part_of(call.header.count, members(), index_);
  PartReduction own_part(call, reduction, members(), at(const_cast<void*>(in), own.begin * each), at(out, own.begin * each), own.count);
  auto all = ways();
  for (Way& way : all) {
    Part part = part_of(call.header.count, members(), way.index);
    way.source = std::make_unique<SourceChain>(
        contribution_source(call, static_cast<const uint8_t*>(in) + part.begin * each, part.count), own_part.result_source());
    way.sink = std::make_unique<SinkChain>(own_part.sink(way.index), result_sink(call, at(out, part.begin * each), part.count));
  }
  streams_.run(all, call);
}

void SocketOperations::reduce_scatter(const Call& call, const void* in, void* out) {
  size_t bytes = size_of(call);
  auto* first = static_cast<const uint8_t*>(in);
  auto* target = static_cast<uint8_t*>(out);
  bool overlaps = target < first + bytes * members() && first < target + bytes;
  if (overlaps) scratch_.resize(bytes);
  PartReduction own_part(call, hopsml_reduction(call.header.reduction), members(), first + bytes * index_, overlaps ? scratch_.data() : out,
                          call.header.count);
  auto all = ways();
  for (Way& way : all) {
    way.source = contribution_source(call, first + bytes * way.index, call.header.count);
    way.sink = own_part.sink(way.index);
  }
  streams_.run(all, call);
  if (overlaps) std::memcpy(out, scratch_.data(), bytes);
}

}  // namespace hopsml

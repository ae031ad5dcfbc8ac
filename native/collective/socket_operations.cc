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
  for (int32_t step = 1; step < size_; step++) {
    Way way{};
    way.rank = (rank_ + step) % size_;
    all.push_back(std::move(way));
  }
  return all;
}

void SocketOperations::barrier(const Call& call) {
  auto all = ways();
  streams_.run(all, call);
}

void SocketOperations::gather(const Call& call, const void* in, void* out, size_t bytes) {
  uint8_t* own = at(out, bytes * size_t(rank_));
  std::memmove(own, in, bytes);
  auto all = ways();
  for (Way& way : all) {
    way.source = std::make_unique<MemorySource>(own, bytes);
    way.sink = std::make_unique<MemorySink>(at(out, bytes * size_t(way.rank)), bytes);
  }
  streams_.run(all, call);
}

void SocketOperations::all_gather(const Call& call, const void* in, void* out) { gather(call, in, out, size_of(call)); }

void SocketOperations::broadcast(const Call& call, const void* in, void* out) {
  size_t bytes = size_of(call);
  auto all = ways();
  for (Way& way : all) {
    if (call.header.root == rank_) way.source = std::make_unique<MemorySource>(in, bytes);
    if (call.header.root == way.rank) way.sink = std::make_unique<MemorySink>(out, bytes);
  }
  streams_.run(all, call);
  if (call.header.root == rank_ && in != out) std::memcpy(out, in, bytes);
}

void SocketOperations::reduce_gathered(const Call& call, const void* in, void* out) {
  size_t bytes = size_of(call);
  scratch_.resize(bytes * size_t(size_));
  gather(call, in, scratch_.data(), bytes);
  std::vector<const void*> sources;
  for (int32_t rank = 0; rank < size_; rank++) sources.push_back(scratch_.data() + bytes * size_t(rank));
  reduce(type_of(call), hopsml_reduction(call.header.reduction), sources.data(), sources.size(), out, call.header.count);
}

void SocketOperations::all_reduce(const Call& call, const void* in, void* out) {
  if (size_of(call) <= kSmall) return reduce_gathered(call, in, out);
  size_t each = element_size(type_of(call));
  Part own = part_of(call.header.count, size_t(size_), size_t(rank_));
  PartReduction reduction(call, size_, at(const_cast<void*>(in), own.begin * each), at(out, own.begin * each), own.count);
  auto all = ways();
  for (Way& way : all) {
    Part part = part_of(call.header.count, size_t(size_), size_t(way.rank));
    way.source = std::make_unique<SourceChain>(
        contribution_source(call, static_cast<const uint8_t*>(in) + part.begin * each, part.count), reduction.result_source());
    way.sink = std::make_unique<SinkChain>(reduction.sink(way.rank), result_sink(call, at(out, part.begin * each), part.count));
  }
  streams_.run(all, call);
}

void SocketOperations::reduce_scatter(const Call& call, const void* in, void* out) {
  size_t bytes = size_of(call);
  auto* first = static_cast<const uint8_t*>(in);
  auto* target = static_cast<uint8_t*>(out);
  bool overlaps = target < first + bytes * size_t(size_) && first < target + bytes;
  if (overlaps) scratch_.resize(bytes);
  PartReduction reduction(call, size_, first + bytes * size_t(rank_), overlaps ? scratch_.data() : out,
                          call.header.count);
  auto all = ways();
  for (Way& way : all) {
    way.source = contribution_source(call, first + bytes * size_t(way.rank), call.header.count);
    way.sink = reduction.sink(way.rank);
  }
  streams_.run(all, call);
  if (overlaps) std::memcpy(out, scratch_.data(), bytes);
}

}  // namespace hopsml

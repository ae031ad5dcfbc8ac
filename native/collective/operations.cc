#include "operations.h"

#include <numeric>

#include "element_types.h"
#include "reduce_kernels.h"

namespace hopsml {
namespace {

std::vector<int32_t> ranks_up_to(int32_t size) {
  std::vector<int32_t> ranks(size_t(size), 0);
  std::iota(ranks.begin(), ranks.end(), 0);
  return ranks;
}

/* A sum of 16 bits that is stored between two stages is rounded twice, and may be infinite although the mean is finite.
 */
bool loses_by_halves(const CallHeader& header) {
  bool is_sum = header.reduction == HOPSML_SUM || header.reduction == HOPSML_MEAN;
  return is_sum && (header.type == HOPSML_FLOAT16 || header.type == HOPSML_BFLOAT16);
}

}  // namespace

Operations::Operations(int32_t rank, int32_t size, const Hosts& hosts, Room* room, bool everywhere,
                       hopsml_algorithm algorithm, Streams& streams, Watch& watch)
    : size_(size),
      all_here_(room != nullptr && room->members() == size_t(size)),
      by_machine_(everywhere && hosts.leaders.size() < size_t(size)),
      leads_(hosts.here.front() == rank),
      sockets_(size_t(rank), ranks_up_to(size), algorithm, streams),
      leaders_(index_of(hosts.leaders, rank), hosts.leaders, algorithm, streams) {
  if (room != nullptr) room_ = std::make_unique<RoomOperations>(*room, watch);
}

void Operations::carry_out(const Call& call, const void* in, void* out) {
  if (all_here_) return in_room(call, in, out);
  if (by_machine_ && call.header.operation == kAllReduce && !loses_by_halves(call.header))
    return reduce_by_machine(call, in, out);
  if (room_) room_->barrier(call); /* a member with a different call may be waiting there */
  over_sockets(call, in, out);
}

/* If all share memory, the last gate has confirmed it: see Room. */
bool Operations::conclude(const Call& call) { return all_here_ ? room_->pause_posted() : sockets_.agree(call); }

bool Operations::spares_input(const CallHeader& header) const {
  return all_here_ && header.operation == kAllReduce && RoomOperations::is_small(header);
}

void Operations::in_room(const Call& call, const void* in, void* out) {
  switch (call.header.operation) {
    case kBarrier: return room_->barrier(call);
    case kAllReduce: return room_->all_reduce(call, hopsml_reduction(call.header.reduction), in, out);
    case kAllGather: return room_->all_gather(call, in, out);
    case kBroadcast: return room_->broadcast(call, in, out, size_t(call.header.root));
    case kReduceScatter: return room_->reduce_scatter(call, in, out);
  }
}

void Operations::over_sockets(const Call& call, const void* in, void* out) {
  switch (call.header.operation) {
    case kBarrier: return sockets_.barrier(call);
    case kAllReduce: return sockets_.all_reduce(call, hopsml_reduction(call.header.reduction), in, out);
    case kAllGather: return sockets_.all_gather(call, in, out);
    case kBroadcast: return sockets_.broadcast(call, in, out);
    case kReduceScatter: return sockets_.reduce_scatter(call, in, out);
  }
}

/* Each machine's sum in memory, their sum between one member of each, and the result in memory again. */
void Operations::reduce_by_machine(const Call& call, const void* in, void* out) {
  bool is_mean = call.header.reduction == HOPSML_MEAN;
  hopsml_reduction reduction = is_mean ? HOPSML_SUM : hopsml_reduction(call.header.reduction);
  if (room_) room_->all_reduce(call, reduction, in, out);
  if (leads_) {
    leaders_.all_reduce(call, reduction, room_ ? out : in, out);
    if (is_mean) divide(hopsml_type(call.header.type), out, call.header.count, size_t(size_));
  }
  if (room_) room_->broadcast(call, out, out, 0);
}

}  // namespace hopsml

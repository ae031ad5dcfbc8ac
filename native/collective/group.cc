#include "group.h"

#include <new>
#include <numeric>

#include "clock.h"
#include "element_types.h"
#include "forming.h"
#include "room_forming.h"

namespace hopsml {
namespace {

constexpr double kLongestGrace = 0.5; /* seconds in which members that take part answer that they do */

Membership membership(const hopsml_options& options) {
  Membership own;
  own.rank = options.rank;
  own.size = options.size;
  own.generation = options.generation;
  own.secret.assign(options.secret, options.secret + options.secret_size);
  return own;
}

bool on_one_machine(const hopsml_options& options) {
  if (options.hosts == nullptr || options.size < 2 || size_t(options.size) > Room::kMostMembers) return false;
  for (int32_t rank = 0; rank < options.size; rank++) {
    const char *first = options.hosts[0], *other = options.hosts[rank];
    if (first == nullptr || other == nullptr || std::strcmp(first, other) != 0) return false;
  }
  return true;
}

/* What an operation on one member alone comes to, and what it has of its own in any. */
size_t size_of(const CallHeader& header) { return size_t(header.count) * element_size(hopsml_type(header.type)); }

}  // namespace

Group::Group(const hopsml_options& options) : own_(membership(options)), timeout_(options.timeout_s), epoch_(fork_epoch()) {
  Descriptor listener(options.listener);
  if (listener) make_ours(listener.get());
  double deadline = options.form_timeout_s > 0 ? now() + options.form_timeout_s : kNever;
  std::vector<std::string> addresses;
  for (int32_t rank = 0; rank < own_.size; rank++)
    addresses.emplace_back(own_.size == 1 && options.addresses == nullptr ? "" : options.addresses[rank]);
  Mesh mesh = form_mesh(own_, addresses, std::move(listener), deadline);
  watch_ = std::make_unique<Watch>(own_.rank, std::move(mesh.control));
  streams_ = std::make_unique<Streams>(own_.rank, std::move(mesh.data), *watch_);
  sockets_ = std::make_unique<SocketOperations>(own_.rank, own_.size, *streams_);
  if (!on_one_machine(options)) return;
  std::vector<int32_t> ranks(size_t(own_.size));
  std::iota(ranks.begin(), ranks.end(), 0);
  room_ = form_room(own_, ranks, *watch_, deadline);
  if (room_) in_room_ = std::make_unique<RoomOperations>(*room_, *watch_);
}

Group::~Group() {
  if (!forked()) end("it was released");
}

hopsml_status Group::perform(CallHeader header, const void* in, void* out) {
  if (forked() || ending_) return HOPSML_ENDED;
  Call call;
  call.deadline = timeout_ > 0 ? now() + timeout_ : kNever;
  call.grace = std::min(kLongestGrace, timeout_ / 4);
  std::lock_guard<std::mutex> lock(mutex_);
  if (failed_) return trouble_.status;
  header.number = ++calls_;
  call.header = header;
  try {
    watch_->look(call);
    carry_out(call, in, out);
    completed_ = calls_;
    return HOPSML_OK;
  } catch (const Trouble& trouble) {
    return fail(trouble);
  } catch (const std::bad_alloc&) {
    return fail(Trouble{HOPSML_SYSTEM, own_.rank, "rank " + std::to_string(own_.rank) + " has no memory left"});
  }
}

void Group::carry_out(const Call& call, const void* in, void* out) {
  if (own_.size == 1) {
    if (call.header.operation != kBarrier && in != out) std::memmove(out, in, size_of(call.header));
    return;
  }
  if (in_room_) return carry_out_in_room(call, in, out);
  switch (call.header.operation) {
    case kBarrier: return sockets_->barrier(call);
    case kAllReduce: return sockets_->all_reduce(call, in, out);
    case kAllGather: return sockets_->all_gather(call, in, out);
    case kBroadcast: return sockets_->broadcast(call, in, out);
    case kReduceScatter: return sockets_->reduce_scatter(call, in, out);
  }
}

void Group::carry_out_in_room(const Call& call, const void* in, void* out) {
  switch (call.header.operation) {
    case kBarrier: return in_room_->barrier(call);
    case kAllReduce: return in_room_->all_reduce(call, in, out);
    case kAllGather: return in_room_->all_gather(call, in, out);
    case kBroadcast: return in_room_->broadcast(call, in, out, size_t(call.header.root));
    case kReduceScatter: return in_room_->reduce_scatter(call, in, out);
  }
}

hopsml_status Group::fail(Trouble trouble) {
  if (ending_) trouble = Trouble{HOPSML_ENDED, -1, "this group was ended here", true};
  trouble_ = std::move(trouble);
  failed_ = true;
  if (!trouble_.told) watch_->tell_all(Notice{NoticeKind::kFailed, trouble_.status, trouble_.rank, 0, trouble_.text});
  return trouble_.status;
}

void Group::end(const char* why) {
  if (forked() || ending_.exchange(true)) return;
  watch_->interrupt();
  if (room_) room_->wake();
  std::lock_guard<std::mutex> lock(mutex_);
  std::string text = why == nullptr ? "" : why;
  watch_->tell_all(Notice{NoticeKind::kEnded, HOPSML_OK, own_.rank, completed_, text});
  if (!failed_) {
    trouble_ = Trouble{HOPSML_ENDED, -1, "this group was ended here" + (text.empty() ? "" : ": " + text)};
    failed_ = true;
  }
  watch_->close();
  streams_->close();
}

const char* Group::problem() const { return failed_ ? trouble_.text.c_str() : ""; }

int32_t Group::lost_rank() const { return failed_ ? trouble_.rank : -1; }

}  // namespace hopsml

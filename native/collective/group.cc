#include "group.h"

#include <new>

#include "clock.h"
#include "element_types.h"
#include "float_mode.h"
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

/* What an operation of one member alone comes to. */
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
  Hosts hosts = hosts_of(options);
  if (hosts.here.size() > 1 && hosts.here.size() <= Room::kMostMembers) room_ = form_room(own_, hosts.here, *watch_, deadline);
  bool everywhere = room_ != nullptr || hosts.here.size() == 1;
  if (hosts.leaders.size() > 1 && hosts.leaders.size() < size_t(own_.size))
    everywhere = agree_on_rooms(own_, everywhere, *watch_, deadline);
  operations_ = std::make_unique<Operations>(own_.rank, own_.size, hosts, room_.get(), everywhere, *streams_, *watch_);
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
    StandardFloats mode;
    watch_->look(call);
    if (own_.size > 1)
      operations_->carry_out(call, in, out);
    else if (in != out && header.count > 0)
      std::memmove(out, in, size_of(header));
    completed_ = calls_;
    return HOPSML_OK;
  } catch (const Trouble& trouble) {
    return fail(trouble);
  } catch (const std::bad_alloc&) {
    return fail(Trouble{HOPSML_SYSTEM, own_.rank, "rank " + std::to_string(own_.rank) + " has no memory left"});
  }
}

hopsml_status Group::fail(Trouble trouble) {
  if (ending_) trouble = Trouble{HOPSML_ENDED, -1, "this group was ended here", true};
  trouble_ = std::move(trouble);
  failed_ = true;
  if (!trouble_.told) watch_->tell_all(Notice{NoticeKind::kFailed, trouble_.status, trouble_.rank, calls_, trouble_.text});
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

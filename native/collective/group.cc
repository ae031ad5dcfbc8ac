#include "group.h"

#include <cstring>
#include <new>
#include <utility>

#include "clock.h"
#include "element_types.h"
#include "float_mode.h"

namespace hopsml {
namespace {

constexpr double kLongestGrace = 0.5; /* seconds in which members confirm that they take part */

Limit limit_of(const hopsml_options& options, const Interrupt& ended) {
  return {options.form_timeout_s > 0 ? now() + options.form_timeout_s : kNever, ended};
}

double deadline_after(double timeout) { return timeout > 0 ? now() + timeout : kNever; }

Trouble overtaken() { return Trouble{HOPSML_CHANGED, -1, "a newer reform has taken the place of this one"}; }

struct Bytes {
  uint8_t *begin, *end;
};

Bytes bytes_of(const CallHeader& header, const void* data, size_t times) {
  auto* begin = static_cast<uint8_t*>(const_cast<void*>(data));
  return {begin, begin + header.count * element_size(hopsml_type(header.type)) * times};
}

}  // namespace

Group::Group(const hopsml_options& options, Descriptor listener)
    : resumable_(options.resumable != 0),
      guest_(options.guest != 0),
      epoch_(fork_epoch()),
      timeout_(options.timeout_s),
      made_in_(options.generation),
      newest_(options.generation) {
  Limit limit = limit_of(options, ended_);
  generation_ = std::make_shared<Generation>(options, std::move(listener), limit, ended_);
  if (!resumable_) return;
  Standing settled = settle(generation_->exchange(Standing{}, limit), options.generation);
  completed_ = settled.completed, made_in_ = settled.made_in;
}

Group::~Group() {
  if (!forked()) end("it was released");
}

Group::Place Group::place() const {
  std::unique_lock<std::mutex> lock(view_, std::defer_lock);
  if (!forked()) lock.lock(); /* in a fork it may be held forever */
  const Membership& own = generation_->own();
  return {own.rank, own.size, own.generation};
}

std::shared_ptr<Generation> Group::generation() const {
  std::lock_guard<std::mutex> lock(view_);
  return generation_;
}

/* Only one thread at a time is here, and in a resumable group the first one remains first while it waits. */
hopsml_status Group::perform(Request& request) {
  if (forked() || ending_) return HOPSML_ENDED;
  request.call.deadline = deadline_after(timeout_);
  std::unique_lock<std::mutex> row(row_, std::defer_lock);
  if (resumable_) row.lock();
  std::unique_lock<std::mutex> lock(mutex_);
  while (true) {
    if (resumable_) {
      changed_.wait(lock, [this] { return !is_held(); });
      /* of the present members, for which this call has not waited yet */
      request.call.deadline = deadline_after(timeout_);
    }
    if (failed_) return trouble_.status;
    if (hopsml_status refused = refusal(request)) return refused;
    if (auto status = attempt(request)) return *status;
    changed_.wait(lock, [this] { return !is_held(); });
    if (failed_) return trouble_.status;
    if (std::exchange(stage_, Stage::kLacking) == Stage::kWhole) return HOPSML_OK;
    if (!kept_.empty()) std::memcpy(kept_of_, kept_.data(), kept_.size());
    if (request.generation) return HOPSML_CHANGED;
  }
}

/* Returns the status of a call that is impossible with the present members; HOPSML_OK: it is possible. */
hopsml_status Group::refusal(const Request& request) const {
  const Membership& own = generation_->own();
  if (request.generation && *request.generation != own.generation) return HOPSML_CHANGED;
  if (request.call.header.root >= own.size) return HOPSML_ARGUMENT;
  bool is_of_each = request.in_of_each || request.out_of_each;
  return is_of_each && request.call.header.count > kMostElements / uint64_t(own.size) ? HOPSML_ARGUMENT : HOPSML_OK;
}

void Group::keep_input(const Request& request) {
  auto members = size_t(generation_->own().size);
  Bytes in = bytes_of(request.call.header, request.in, request.in_of_each ? members : 1);
  Bytes out = bytes_of(request.call.header, request.out, request.out_of_each ? members : 1);
  uint8_t *begin = std::max(in.begin, out.begin), *end = std::min(in.end, out.end);
  kept_of_ = begin;
  if (begin < end && !generation_->spares_input(request.call.header))
    kept_.assign(begin, end);
  else
    kept_.clear();
}

/* Makes the call and returns its status; nothing if it waits for a reform, which settles its outcome. */
std::optional<hopsml_status> Group::attempt(Request& request) {
  Call& call = request.call;
  call.header.number = completed_ + 1;
  call.header.pause = resumable_ && pause_asked_;
  call.grace = std::min(kLongestGrace, timeout_ / 4);
  try {
    if (resumable_) keep_input(request);
    StandardFloats mode;
    generation_->carry_out(call, request.in, request.out);
    if (resumable_) {
      stage_ = Stage::kDoubtful, tried_in_ = generation_->own().generation;
      if (generation_->conclude(call)) pause_agreed_ = true;
      stage_ = Stage::kLacking, made_in_ = tried_in_;
    }
    completed_++;
    return HOPSML_OK;
  } catch (const Trouble& trouble) {
    return meet(trouble);
  } catch (const std::bad_alloc&) {
    int32_t rank = generation_->own().rank;
    return fail(Trouble{HOPSML_SYSTEM, rank, "rank " + std::to_string(rank) + " has no memory left"});
  }
}

std::optional<hopsml_status> Group::meet(const Trouble& trouble) {
  bool is_loss = trouble.status == HOPSML_PEER_LOST || trouble.status == HOPSML_DEADLINE;
  bool is_interrupted = trouble.status == HOPSML_ENDED && !ending_; /* by a reform */
  if (!resumable_ || ending_ || !(is_loss || is_interrupted)) return fail(trouble);
  if (is_loss) {
    tell(trouble);
    set_trouble(trouble);
    waiting_ = true;
  }
  return std::nullopt;
}

hopsml_status Group::fail(const Trouble& trouble) {
  tell(trouble);
  set_trouble(ending_ ? ended_here() : trouble);
  failed_ = true;
  return trouble_.status;
}

void Group::tell(const Trouble& trouble) {
  if (!trouble.told && !ending_)
    generation_->watch().tell_all(Notice{NoticeKind::kFailed, trouble.status, trouble.rank, completed_ + 1, trouble.text});
}

void Group::set_trouble(Trouble trouble) {
  std::lock_guard<std::mutex> lock(view_);
  trouble_ = std::move(trouble);
}

Standing Group::standing() const {
  if (guest_) return Standing{};
  return {false, stage_ == Stage::kDoubtful, completed_, made_in_, tried_in_};
}

/* Stops the reform in progress: it may wait for a member that never comes, which is why another one is requested. */
std::shared_ptr<Interrupt> Group::begin_reform(uint64_t generation) {
  auto stop = std::make_shared<Interrupt>();
  std::lock_guard<std::mutex> lock(view_);
  if (ending_) throw ended_here();
  if (generation <= newest_)
    throw Trouble{HOPSML_ARGUMENT, -1, "generation " + std::to_string(generation) + " is not higher than the newest, " +
                                           std::to_string(newest_)};
  newest_ = generation;
  if (stop_) stop_->set();
  return stop_ = stop;
}

/* The old generation exists until the new one is formed: otherwise its members would count each other as lost before
 * they receive the order to continue. */
void Group::reform(const hopsml_options& options, Descriptor listener) {
  if (forked() || ending_) throw ended_here();
  if (!resumable_) throw Trouble{HOPSML_ARGUMENT, -1, "this group is not resumable: it was formed without that option"};
  auto stop = begin_reform(options.generation);
  std::lock_guard<std::mutex> one(reforms_);
  /* The order of waiting threads is not defined: the present generation may be newer, and must not be interrupted. */
  if (stop->is_set()) throw ending_ ? ended_here() : overtaken();
  reforming_ = true;
  generation()->interrupt();
  try {
    Standing own;
    {
      std::lock_guard<std::mutex> lock(mutex_);
      if (failed_) throw trouble_;
      own = standing();
    }
    Limit limit = limit_of(options, *stop);
    auto next = std::make_shared<Generation>(options, std::move(listener), limit, ended_);
    go_on(next, settle(next->exchange(own, limit), options.generation), options.timeout_s);
  } catch (Trouble trouble) {
    if (stop->is_set() && !ending_) trouble = overtaken();
    wait_for_another(trouble);
    throw trouble;
  } catch (const std::exception& unexpected) {
    wait_for_another(Trouble{HOPSML_SYSTEM, -1, unexpected.what()});
    throw;
  }
}

void Group::go_on(std::shared_ptr<Generation> next, const Standing& settled, double timeout) {
  {
    std::lock_guard<std::mutex> lock(mutex_);
    if (failed_) throw trouble_;
    if (stage_ == Stage::kDoubtful) stage_ = completed_ < settled.completed ? Stage::kWhole : Stage::kLacking;
    completed_ = settled.completed, made_in_ = settled.made_in;
    timeout_ = timeout;
    guest_ = false;
    pause_asked_ = pause_agreed_ = false;
    {
      std::lock_guard<std::mutex> view(view_);
      std::swap(generation_, next);
      trouble_ = Trouble{HOPSML_OK, -1, ""};
    }
    waiting_ = reforming_ = false;
  }
  changed_.notify_all();
  next->leave(0, "it goes on in generation " + std::to_string(place().generation));
}

void Group::wait_for_another(const Trouble& trouble) {
  std::lock_guard<std::mutex> lock(mutex_);
  reforming_ = false;
  if (failed_) return;
  if (!waiting_) set_trouble(trouble);
  waiting_ = true;
}

void Group::end(const char* why) {
  if (forked() || ending_.exchange(true)) return;
  ended_.set();
  {
    std::lock_guard<std::mutex> view(view_);
    if (stop_) stop_->set();
    generation_->wake();
  }
  std::lock_guard<std::mutex> lock(mutex_);
  std::string text = why == nullptr ? "" : why;
  generation_->leave(completed_, text);
  if (!failed_) {
    set_trouble(Trouble{HOPSML_ENDED, -1, "this group was ended here" + (text.empty() ? "" : ": " + text)});
    failed_ = true;
  }
  waiting_ = false;
  changed_.notify_all();
}

std::string Group::problem() const {
  if (forked()) return "this process is a fork of the one that formed the group";
  std::lock_guard<std::mutex> lock(view_);
  return trouble_.text;
}

int32_t Group::lost_rank() const {
  if (forked()) return -1;
  std::lock_guard<std::mutex> lock(view_);
  return trouble_.rank;
}

}  // namespace hopsml

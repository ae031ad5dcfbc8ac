#include "watch.h"

#include <sys/epoll.h>
#include <unistd.h>

#include "clock.h"
#include "sockets.h"

namespace hopsml {
namespace {

constexpr uint32_t kMagic = 0x45544f4e; /* "NOTE" */

struct NoticeHeader {
  uint32_t magic;
  uint8_t kind, status;
  uint16_t size; /* of the text after it */
  int32_t rank;
  uint32_t reserved;
  uint64_t call;
};
static_assert(sizeof(NoticeHeader) == 24, "no padding");

std::string rank_text(int32_t rank) { return "rank " + std::to_string(rank); }

}  // namespace

std::string encode(const Notice& notice) {
  NoticeHeader header{};
  header.magic = kMagic;
  header.kind = uint8_t(notice.kind), header.status = uint8_t(notice.status);
  header.size = uint16_t(std::min(notice.text.size(), kLongestNotice));
  header.rank = notice.rank;
  header.call = notice.call;
  return std::string(reinterpret_cast<const char*>(&header), sizeof header) + notice.text.substr(0, header.size);
}

std::optional<Notice> decode(std::string& bytes) {
  NoticeHeader header;
  if (bytes.size() < sizeof header) return std::nullopt;
  std::memcpy(&header, bytes.data(), sizeof header);
  bool is_known = header.kind >= uint8_t(NoticeKind::kEnded) && header.kind <= uint8_t(NoticeKind::kPlace);
  if (header.magic != kMagic || !is_known || header.status > HOPSML_UNAVAILABLE || header.size > kLongestNotice)
    throw Trouble{HOPSML_PEER_LOST, -1, "it said what has no meaning"};
  if (bytes.size() < sizeof header + header.size) return std::nullopt;
  Notice notice{NoticeKind(header.kind), hopsml_status(header.status), header.rank, header.call,
                bytes.substr(sizeof header, header.size)};
  bytes.erase(0, sizeof header + header.size);
  return notice;
}

Watch::Watch(int32_t rank, std::vector<Line> lines, const Interrupt& ended) : rank_(rank), members_(lines.size()) {
  events_ = Descriptor(epoll_create1(EPOLL_CLOEXEC));
  if (!events_) throw system_trouble("a descriptor to wait with");
  auto add = [this](int descriptor, int32_t number) {
    epoll_event event{};
    event.events = EPOLLIN;
    event.data.u32 = uint32_t(number);
    if (epoll_ctl(events_.get(), EPOLL_CTL_ADD, descriptor, &event) != 0) throw system_trouble("a descriptor to wait with");
  };
  add(interrupt_.descriptor(), rank);
  add(ended.descriptor(), rank);
  for (size_t i = 0; i < lines.size(); i++) {
    members_[i].line = std::move(lines[i]);
    if (members_[i].line) add(members_[i].line.descriptor(), int32_t(i));
  }
}

void Watch::collect() {
  epoll_event events[64];
  int count = epoll_wait(events_.get(), events, 64, 0);
  for (int i = 0; i < count; i++) {
    int32_t rank = int32_t(events[i].data.u32);
    if (rank == rank_) throw ended_here();
    receive(rank);
  }
}

void Watch::receive(int32_t rank) {
  Member& member = members_[size_t(rank)];
  char buffer[4096];
  ssize_t got;
  do {
    iovec part{buffer, sizeof buffer};
    got = member.line.receive(&part, 1);
    if (got > 0) member.received.append(buffer, size_t(got));
  } while (got > 0);
  try {
    while (auto notice = decode(member.received)) take(rank, std::move(*notice));
  } catch (const Trouble&) {
    got = -1;
  }
  if (got < 0) {
    epoll_ctl(events_.get(), EPOLL_CTL_DEL, member.line.descriptor(), nullptr);
    member.closed = true;
  }
}

void Watch::take(int32_t rank, Notice notice) {
  Member& member = members_[size_t(rank)];
  switch (notice.kind) {
    case NoticeKind::kEnded: member.ended = std::move(notice); break;
    case NoticeKind::kFailed:
      if (!member.failed) member.failed = std::move(notice);
      break;
    case NoticeKind::kAsk: tell(rank, Notice{NoticeKind::kHere, HOPSML_OK, rank_, notice.call, ""}); break;
    case NoticeKind::kHere: member.answered = std::max(member.answered, notice.call); break;
    case NoticeKind::kRoom:
    case NoticeKind::kPlace: member.unheard.push_back(std::move(notice)); break;
  }
}

void Watch::check(const Call& call) const {
  for (const Member& member : members_)
    if (member.failed && member.failed->call <= call.header.number)
      throw Trouble{member.failed->status, member.failed->rank, member.failed->text, true};
  for (size_t i = 0; i < members_.size(); i++) {
    const Member& member = members_[i];
    if (member.ended && member.ended->call < call.header.number)
      throw Trouble{HOPSML_PEER_LOST, int32_t(i), rank_text(int32_t(i)) + " has ended the group: " + member.ended->text};
    if (member.closed && !member.ended)
      throw Trouble{HOPSML_PEER_LOST, int32_t(i), rank_text(int32_t(i)) + " was lost: its connection broke"};
  }
}

void Watch::look(const Call& call) {
  collect();
  check(call);
}

void Watch::wait(std::vector<pollfd>& others, const Call& call, int32_t awaited) {
  double until = now() + patience(call, awaited);
  others.push_back({events_.get(), POLLIN, 0});
  poll(others.data(), others.size(), milliseconds_until(until));
  if (others.back().revents != 0) look(call);
  others.pop_back();
}

double Watch::patience(const Call& call, int32_t awaited) {
  if (call.deadline == kNever) return 60;
  double left = call.deadline - now();
  if (left <= 0) {
    look(call);
    give_up(call, awaited);
  }
  if (left > call.grace) return left - call.grace;
  if (asked_ != call.header.number) {
    asked_ = call.header.number;
    tell_all(Notice{NoticeKind::kAsk, HOPSML_OK, rank_, asked_, ""});
  }
  return left;
}

void Watch::give_up(const Call& call, int32_t awaited) const {
  int32_t silent = awaited;
  for (size_t i = members_.size(); i-- > 0;)
    if (int32_t(i) != rank_ && !members_[i].ended && members_[i].answered < call.header.number) silent = int32_t(i);
  throw Trouble{HOPSML_DEADLINE, silent,
                rank_text(silent) + " took no part in time; rank " + std::to_string(rank_) + " waited in " +
                    describe(call.header)};
}

void Watch::tell(int32_t rank, const Notice& notice) {
  Member& member = members_[size_t(rank)];
  if (!member.line || member.closed) return;
  member.unsent += encode(notice);
  iovec part{member.unsent.data(), member.unsent.size()};
  ssize_t sent = member.line.send(&part, 1);
  /* the rest is sent with the next one: its reader reads nothing now */
  if (sent > 0) member.unsent.erase(0, size_t(sent));
}

void Watch::tell_all(const Notice& notice) {
  for (size_t i = 0; i < members_.size(); i++) tell(int32_t(i), notice);
}

std::optional<Notice> Watch::hear(int32_t rank, NoticeKind kind, const Limit& limit) {
  Member& member = members_[size_t(rank)];
  while (true) {
    receive(rank);
    for (auto notice = member.unheard.begin(); notice != member.unheard.end(); ++notice) {
      if (notice->kind != kind) continue;
      Notice found = std::move(*notice);
      member.unheard.erase(notice);
      return found;
    }
    if (member.closed) throw Trouble{HOPSML_PEER_LOST, rank, rank_text(rank) + " was lost while the group formed"};
    if (!is_readable(member.line.descriptor(), limit)) return std::nullopt;
  }
}

void Watch::close() {
  for (Member& member : members_) member.line.close();
}

}  // namespace hopsml

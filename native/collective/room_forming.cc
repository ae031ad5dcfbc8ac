#include "room_forming.h"

#include <sys/random.h>
#include <unistd.h>

#include <algorithm>

#include "clock.h"
#include "forming.h"
#include "hosts.h"

namespace hopsml {
namespace {

constexpr double kHandOverSeconds = 5; /* between processes of one machine that have just communicated */

std::string random_name() {
  uint8_t bytes[16];
  if (getrandom(bytes, sizeof bytes, 0) != ssize_t(sizeof bytes)) throw system_trouble("random bytes");
  std::string name = "hopsml-";
  for (uint8_t byte : bytes) name += "0123456789abcdef"[byte >> 4], name += "0123456789abcdef"[byte & 15];
  return name;
}

void check_same_user(int socket) {
  ucred credentials{};
  socklen_t size = sizeof credentials;
  if (getsockopt(socket, SOL_SOCKET, SO_PEERCRED, &credentials, &size) != 0 || credentials.uid != geteuid())
    throw Trouble{HOPSML_REFUSED, -1, "a process of another user"};
}

void send_descriptor(int socket, int descriptor) {
  char byte = 'M';
  iovec part{&byte, 1};
  alignas(cmsghdr) char control[CMSG_SPACE(sizeof(int))] = {};
  msghdr message{};
  message.msg_iov = &part, message.msg_iovlen = 1;
  message.msg_control = control, message.msg_controllen = sizeof control;
  cmsghdr* header = CMSG_FIRSTHDR(&message);
  header->cmsg_level = SOL_SOCKET, header->cmsg_type = SCM_RIGHTS, header->cmsg_len = CMSG_LEN(sizeof(int));
  std::memcpy(CMSG_DATA(header), &descriptor, sizeof descriptor);
  if (sendmsg(socket, &message, MSG_NOSIGNAL) != 1) throw system_trouble("handing shared memory over");
}

Descriptor receive_descriptor(int socket, const Limit& limit) {
  if (!is_readable(socket, limit)) throw Trouble{HOPSML_DEADLINE, -1, "no shared memory came"};
  char byte;
  iovec part{&byte, 1};
  alignas(cmsghdr) char control[CMSG_SPACE(sizeof(int))];
  msghdr message{};
  message.msg_iov = &part, message.msg_iovlen = 1;
  message.msg_control = control, message.msg_controllen = sizeof control;
  if (recvmsg(socket, &message, MSG_CMSG_CLOEXEC) != 1) throw system_trouble("taking shared memory over");
  cmsghdr* header = CMSG_FIRSTHDR(&message);
  if (header == nullptr || header->cmsg_level != SOL_SOCKET || header->cmsg_type != SCM_RIGHTS)
    throw Trouble{HOPSML_SYSTEM, -1, "no shared memory came"};
  int descriptor;
  std::memcpy(&descriptor, CMSG_DATA(header), sizeof descriptor);
  return Descriptor(descriptor);
}

Notice hear_of_room(Watch& watch, int32_t rank, const Limit& limit) {
  auto notice = watch.hear(rank, NoticeKind::kRoom, limit);
  if (notice) return *notice;
  throw Trouble{HOPSML_DEADLINE, rank, "rank " + std::to_string(rank) + " fell silent while the group formed"};
}

Notice answer(const Membership& own, bool yes, const std::string& text = "") {
  return Notice{NoticeKind::kRoom, yes ? HOPSML_OK : HOPSML_SYSTEM, own.rank, 0, text};
}

/* Both sides of the agreement. A member that fails answers "no", and always takes part. */
class RoomForming {
 public:
  RoomForming(const Membership& own, const std::vector<int32_t>& ranks, Watch& watch, const Limit& limit)
      : own_(own), ranks_(ranks), watch_(watch), limit_(limit) {
    index_ = index_of(ranks, own.rank);
  }

  std::unique_ptr<Room> lead() {
    Descriptor memory, listener;
    std::string name;
    attempt([&] {
      memory = Room::make_memory(ranks_.size());
      room_ = std::make_unique<Room>(memory, index_, ranks_);
      std::string chosen = random_name();
      listener = listen_at(abstract_address(chosen), 4 * int(ranks_.size()));
      name = chosen;
    });
    say_all(!name.empty(), name);
    if (name.empty() || !agree()) return nullptr;
    attempt([&] { hand_over(memory, std::move(listener)); });
    return agree() ? std::move(room_) : nullptr;
  }

  std::unique_ptr<Room> follow() {
    Notice offer = hear(ranks_[0]);
    if (offer.status != HOPSML_OK) return nullptr;
    std::vector<Address> address{abstract_address(offer.text)};
    say(ranks_[0], bool(begin_connect(address[0]))); /* in another network namespace that address does not exist */
    if (hear(ranks_[0]).status != HOPSML_OK) return nullptr;
    attempt([&] { take_over(address); });
    say(ranks_[0], room_ != nullptr);
    return hear(ranks_[0]).status == HOPSML_OK ? std::move(room_) : nullptr;
  }

 private:
  template <typename F>
  void attempt(F work) {
    try {
      work();
    } catch (const Trouble&) { /* then there is no shared memory, and sockets are used */
      room_.reset();
    }
  }

  void hand_over(const Descriptor& memory, Descriptor listener) {
    Forming forming(own_, std::move(listener), soon());
    for (size_t i = 1; i < ranks_.size(); i++) forming.expect(ranks_[i], kMemory);
    forming.run();
    for (size_t i = 1; i < ranks_.size(); i++) {
      Descriptor socket = forming.take(ranks_[i], kMemory).socket;
      check_same_user(socket.get());
      send_descriptor(socket.get(), memory.get());
    }
  }

  void take_over(const std::vector<Address>& address) {
    Forming forming(own_, Descriptor(), soon());
    forming.connect(ranks_[0], address, kMemory);
    forming.run();
    Descriptor socket = forming.take(ranks_[0], kMemory).socket;
    check_same_user(socket.get());
    room_ = std::make_unique<Room>(receive_descriptor(socket.get(), soon()), index_, ranks_);
  }

  /* The leader's part: queries all, and sends the outcome to all. */
  bool agree() {
    bool all = room_ != nullptr;
    for (size_t i = 1; i < ranks_.size(); i++) all &= hear(ranks_[i]).status == HOPSML_OK;
    say_all(all, "");
    return all;
  }

  void say(int32_t rank, bool yes, const std::string& text = "") { watch_.tell(rank, answer(own_, yes, text)); }

  void say_all(bool yes, const std::string& text) {
    for (size_t i = 1; i < ranks_.size(); i++) say(ranks_[i], yes, text);
  }

  Notice hear(int32_t rank) { return hear_of_room(watch_, rank, limit_); }

  Limit soon() const { return {std::min(limit_.deadline, now() + kHandOverSeconds), limit_.stop}; }

  const Membership& own_;
  const std::vector<int32_t>& ranks_;
  Watch& watch_;
  Limit limit_;
  size_t index_;
  std::unique_ptr<Room> room_;
};

}  // namespace

std::unique_ptr<Room> form_room(const Membership& own, const std::vector<int32_t>& ranks, Watch& watch, const Limit& limit) {
  RoomForming forming(own, ranks, watch, limit);
  return own.rank == ranks[0] ? forming.lead() : forming.follow();
}

bool agree_on_rooms(const Membership& own, bool here, Watch& watch, const Limit& limit) {
  watch.tell_all(answer(own, here));
  for (int32_t rank = 0; rank < own.size; rank++)
    if (rank != own.rank) here &= hear_of_room(watch, rank, limit).status == HOPSML_OK;
  return here;
}

}  // namespace hopsml

#include "generation.h"

#include "element_types.h"
#include "forming.h"
#include "room_forming.h"
#include "sockets.h"

namespace hopsml {
namespace {

constexpr double kNetworkTimeout = 15; /* seconds */

Membership membership(const hopsml_options& options) {
  Membership own;
  own.rank = options.rank;
  own.size = options.size;
  own.generation = options.generation;
  own.secret.assign(options.secret, options.secret + options.secret_size);
  if (options.encryption != 0) own.protection = own_protection();
  return own;
}

}  // namespace

Generation::Generation(const hopsml_options& options, Descriptor listener, const Limit& limit, const Interrupt& ended)
    : own_(membership(options)) {
  if (listener) make_ours(listener.get());
  std::vector<std::string> addresses;
  for (int32_t rank = 0; rank < own_.size; rank++)
    addresses.emplace_back(own_.size == 1 && options.addresses == nullptr ? "" : options.addresses[rank]);
  Mesh mesh = form_mesh(own_, addresses, std::move(listener), limit);
  for (const Line& one : mesh.control)
    if (one) notice_silence(one.descriptor(), options.network_timeout_s > 0 ? options.network_timeout_s : kNetworkTimeout);
  watch_ = std::make_unique<Watch>(own_.rank, std::move(mesh.control), ended);
  streams_ = std::make_unique<Streams>(own_.rank, std::move(mesh.data), *watch_);
  Hosts hosts = hosts_of(options);
  if (hosts.here.size() > 1 && hosts.here.size() <= Room::kMostMembers) room_ = form_room(own_, hosts.here, *watch_, limit);
  bool everywhere = room_ != nullptr || hosts.here.size() == 1;
  if (hosts.leaders.size() > 1 && hosts.leaders.size() < size_t(own_.size))
    everywhere = agree_on_rooms(own_, everywhere, *watch_, limit);
  operations_ = std::make_unique<Operations>(own_.rank, own_.size, hosts, room_.get(), everywhere,
                                             hopsml_algorithm(options.algorithm), *streams_, *watch_);
}

std::vector<Standing> Generation::exchange(const Standing& own, const Limit& limit) {
  std::vector<Standing> all(size_t(own_.size), own);
  watch_->tell_all(Notice{NoticeKind::kPlace, HOPSML_OK, own_.rank, 0, encode(own)});
  for (int32_t rank = 0; rank < own_.size; rank++) {
    if (rank == own_.rank) continue;
    auto notice = watch_->hear(rank, NoticeKind::kPlace, limit);
    if (!notice) throw Trouble{HOPSML_DEADLINE, rank, "rank " + std::to_string(rank) + " fell silent while the group formed"};
    all[size_t(rank)] = decode_standing(notice->text);
  }
  return all;
}

void Generation::carry_out(const Call& call, const void* in, void* out) {
  watch_->look(call);
  if (own_.size > 1)
    operations_->carry_out(call, in, out);
  else if (in != out && call.header.count > 0)
    std::memmove(out, in, size_t(call.header.count) * element_size(hopsml_type(call.header.type)));
}

bool Generation::conclude(const Call& call) {
  return own_.size > 1 ? operations_->conclude(call) : call.header.pause != 0;
}

bool Generation::spares_input(const CallHeader& header) const {
  return own_.size == 1 || operations_->spares_input(header);
}

void Generation::interrupt() {
  watch_->interrupt();
  wake();
}

void Generation::wake() const {
  if (room_) room_->wake();
}

void Generation::leave(uint64_t call, const std::string& why) {
  watch_->tell_all(Notice{NoticeKind::kEnded, HOPSML_OK, own_.rank, call, why});
  watch_->close();
  streams_->close();
}

}  // namespace hopsml

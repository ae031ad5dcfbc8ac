#include "room.h"

#include <fcntl.h>
#include <linux/futex.h>
#include <sched.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <climits>

#include "clock.h"

namespace hopsml {
namespace {

/* interval at which the other members' connections are checked while waiting */
constexpr double kSecondsBetweenLooks = 0.01;
/* checks of the gate before sleeping; the other members need the cores, too */
constexpr int kSpins = 40;
/* further checks if no other thread needs this core: for as long as waking up takes */
constexpr double kSpinSeconds = 200e-6;
constexpr double kYieldSeconds = 5e-6;        /* a yield that takes longer has let another thread run */
constexpr size_t kGates = 4;
constexpr uint32_t kNextGate = 2;  /* numbers of gates are even: the lowest bit is a flag */
constexpr uint32_t kAbandoned = 1; /* flag that a member has given up */
constexpr size_t kPage = 4096;

long futex(std::atomic<uint32_t>* word, int operation, uint32_t value, const timespec* timeout = nullptr) {
  return syscall(SYS_futex, reinterpret_cast<uint32_t*>(word), operation, value, timeout, nullptr, 0);
}

bool is_before(uint32_t a, uint32_t b) { return int32_t(a - b) < 0; }

}  // namespace

struct Room::Board {
  alignas(64) std::atomic<uint32_t> passed; /* the last gate that all have reached; and kAbandoned */
  std::atomic<uint32_t> sleepers;
  struct alignas(64) Count {
    std::atomic<uint64_t> arrivals; /* total at all gates that share it */
  } gates[kGates];
  struct alignas(64) Place {
    std::atomic<uint32_t> gate; /* gate that this member has reached */
    CallHeader headers[2];      /* of its calls, alternating */
  } places[kMostMembers];
};
static_assert(std::atomic<uint64_t>::is_always_lock_free, "it is shared between processes");

size_t Room::total_size(size_t members) { return (sizeof(Board) + kPage - 1) / kPage * kPage + kBuffers * kBuffer * members; }

Descriptor Room::make_memory(size_t members) {
  Descriptor memory(memfd_create("hopsml-collective", MFD_CLOEXEC | MFD_ALLOW_SEALING));
  if (!memory || ftruncate(memory.get(), off_t(total_size(members))) != 0 ||
      fcntl(memory.get(), F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL) != 0)
    throw system_trouble("shared memory");
  return memory;
}

Room::Room(const Descriptor& memory, size_t index, std::vector<int32_t> ranks)
    : index_(index), size_(total_size(ranks.size())), epoch_(fork_epoch()), ranks_(std::move(ranks)) {
  struct stat status {};
  int seals = fcntl(memory.get(), F_GET_SEALS);
  bool is_ours = fstat(memory.get(), &status) == 0 && size_t(status.st_size) == size_ && seals >= 0 && (seals & F_SEAL_SHRINK);
  if (!is_ours) throw Trouble{HOPSML_SYSTEM, -1, "the shared memory is not what was agreed on"};
  void* mapped = mmap(nullptr, size_, PROT_READ | PROT_WRITE, MAP_SHARED, memory.get(), 0);
  if (mapped == MAP_FAILED) throw system_trouble("shared memory");
  madvise(mapped, size_, MADV_DONTFORK);
  board_ = static_cast<Board*>(mapped);
}

Room::~Room() {
  if (epoch_ == fork_epoch()) munmap(board_, size_); /* a fork did not inherit it */
}

uint8_t* Room::buffer(size_t member, uint64_t round) const {
  size_t head = size_ - kBuffers * kBuffer * ranks_.size();
  return reinterpret_cast<uint8_t*>(board_) + head + (kBuffers * member + round % kBuffers) * kBuffer;
}

uint32_t Room::arrive() {
  uint32_t gate = gate_ += kNextGate;
  board_->places[index_].gate.store(gate, std::memory_order_relaxed);
  uint64_t arrivals = board_->gates[gate / kNextGate % kGates].arrivals.fetch_add(1, std::memory_order_acq_rel) + 1;
  if (arrivals % members() == 0) {
    uint32_t before = gate - kNextGate; /* the value if all have reached that gate, too, and no member has given up */
    board_->passed.compare_exchange_strong(before, gate, std::memory_order_seq_cst);
    if (board_->sleepers.load(std::memory_order_seq_cst) > 0) futex(&board_->passed, FUTEX_WAKE, INT_MAX);
  }
  return gate;
}

bool Room::is_passed(uint32_t gate) const {
  return !is_before(board_->passed.load(std::memory_order_acquire) & ~kAbandoned, gate);
}

/* Prevents the gate from being passed; returns false if it has been passed. */
bool Room::abandon(uint32_t gate) {
  return is_before(board_->passed.fetch_or(kAbandoned, std::memory_order_seq_cst) & ~kAbandoned, gate);
}

void Room::wait(uint32_t gate, Watch& watch, const Call& call) {
  double begin = now(), before = begin;
  for (int i = 0; i < kSpins || before - begin < kSpinSeconds; i++) {
    if (is_passed(gate)) return;
    sched_yield();
    double after = now();
    if (i >= kSpins && after - before > kYieldSeconds) break;
    before = after;
  }
  try {
    sleep(gate, watch, call);
  } catch (const Trouble&) {
    if (abandon(gate)) throw;
  }
}

void Room::sleep(uint32_t gate, Watch& watch, const Call& call) {
  while (true) {
    board_->sleepers.fetch_add(1, std::memory_order_seq_cst);
    uint32_t passed = board_->passed.load(std::memory_order_seq_cst);
    if (is_before(passed & ~kAbandoned, gate)) {
      double seconds = std::min(kSecondsBetweenLooks, watch.patience(call, first_missing(gate)));
      timespec timeout{0, long(1e9 * seconds)};
      futex(&board_->passed, FUTEX_WAIT, passed, &timeout);
    }
    board_->sleepers.fetch_sub(1, std::memory_order_relaxed);
    if (is_passed(gate)) return;
    watch.look(call);
  }
}

int32_t Room::first_missing(uint32_t gate) const {
  for (size_t i = 0; i < members(); i++)
    if (is_before(board_->places[i].gate.load(std::memory_order_relaxed), gate)) return ranks_[i];
  return ranks_[index_];
}

void Room::post(const Call& call) { board_->places[index_].headers[call.header.number % 2] = call.header; }

void Room::check_posted(const Call& call) {
  pause_posted_ = call.header.pause != 0;
  for (size_t i = 0; i < members(); i++) {
    if (i == index_) continue;
    CallHeader other = board_->places[i].headers[call.header.number % 2];
    check_same(call.header, ranks_[index_], other, ranks_[i]);
    pause_posted_ |= other.pause != 0;
  }
}

void Room::wake() const { futex(&board_->passed, FUTEX_WAKE, INT_MAX); }

}  // namespace hopsml

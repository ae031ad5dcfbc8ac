#include "descriptor.h"

#include <pthread.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <mutex>
#include <utility>
#include <vector>

namespace hopsml {
namespace {

std::atomic<uint32_t> epoch{0};

struct Registry {
  std::mutex mutex;
  std::vector<int> open;
};

Registry& registry();

void before_fork() { registry().mutex.lock(); }

void after_fork_in_parent() { registry().mutex.unlock(); }

void after_fork_in_child() {
  for (int number : registry().open) ::close(number);
  registry().open.clear();
  epoch.fetch_add(1, std::memory_order_relaxed);
  registry().mutex.unlock();
}

/* Never destroyed: descriptors may close after the library's own statics are destroyed. */
Registry& registry() {
  static auto* const all = new Registry;
  return *all;
}

void watch_forks() {
  static const int once = [] {
    registry();
    return pthread_atfork(before_fork, after_fork_in_parent, after_fork_in_child);
  }();
  (void)once;
}

}  // namespace

std::mutex& fork_mutex() {
  watch_forks();
  return registry().mutex;
}

uint32_t fork_epoch() { return epoch.load(std::memory_order_relaxed); }

Descriptor::Descriptor(int number) : number_(number), epoch_(fork_epoch()) {
  if (number < 0) return;
  std::lock_guard<std::mutex> lock(fork_mutex());
  registry().open.push_back(number);
}

Descriptor::Descriptor(Descriptor&& other) noexcept : number_(std::exchange(other.number_, -1)), epoch_(other.epoch_) {}

Descriptor& Descriptor::operator=(Descriptor&& other) noexcept {
  if (this != &other) {
    close();
    number_ = std::exchange(other.number_, -1);
    epoch_ = other.epoch_;
  }
  return *this;
}

void Descriptor::close() {
  int number = std::exchange(number_, -1);
  if (number < 0 || epoch_ != fork_epoch()) return;
  std::lock_guard<std::mutex> lock(registry().mutex);
  auto& open = registry().open;
  open.erase(std::find(open.begin(), open.end(), number));
  ::close(number);
}

}  // namespace hopsml

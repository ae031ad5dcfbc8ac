#include "queue.h"

#include <cstdlib>
#include <new>
#include <thread>
#include <utility>

namespace hopsml {

void CallQueue::Add(std::function<void()> call) {
  {
    std::lock_guard<std::mutex> lock(mutex_);
    calls_.push_back(std::move(call));
    if (!started_) std::thread(&CallQueue::Serve, this).detach();
    started_ = true;
  }
  added_.notify_one();
}

char* CallQueue::Scratch(size_t size) {
  if (size > scratch_size_) {
    std::free(scratch_);
    scratch_ = static_cast<char*>(std::aligned_alloc(64, (size + 63) / 64 * 64));
    scratch_size_ = scratch_ == nullptr ? 0 : size;
    if (scratch_ == nullptr) throw std::bad_alloc();
  }
  return scratch_;
}

void CallQueue::Serve() {
  std::unique_lock<std::mutex> lock(mutex_);
  for (;;) {
    added_.wait(lock, [this] { return !calls_.empty(); });
    std::function<void()> call = std::move(calls_.front());
    calls_.pop_front();
    lock.unlock();
    call();
    call = nullptr;
    lock.lock();
  }
}

}  // namespace hopsml

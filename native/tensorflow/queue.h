// The calls of this process to its group, one after the other, on a separate thread.
#ifndef HOPSML_TENSORFLOW_QUEUE_H
#define HOPSML_TENSORFLOW_QUEUE_H

#include <condition_variable>
#include <deque>
#include <functional>
#include <mutex>

#include "of_process.h"

namespace hopsml {

// Members of a group make the same calls in the same order. TensorFlow determines the order (an operation waits for the
// previous one, by its resource); one queue preserves it, and no thread of TensorFlow waits for other members.
class CallQueue {
 public:
  static CallQueue& OfProcess() { return hopsml::OfProcess<CallQueue>(); }

  void Add(std::function<void()> call);

  // Returns memory for `size` bytes, valid until the next request; for calls of the queue only.
  char* Scratch(size_t size);

 private:
  void Serve();

  std::mutex mutex_;
  std::condition_variable added_;
  std::deque<std::function<void()>> calls_;
  char* scratch_ = nullptr;
  size_t scratch_size_ = 0;
  bool started_ = false;  // started by the first call, as forks come before it
};

}  // namespace hopsml

#endif

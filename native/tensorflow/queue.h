// The calls of this process to its group, one after the other, on a thread of their own.
#ifndef HOPSML_TENSORFLOW_QUEUE_H
#define HOPSML_TENSORFLOW_QUEUE_H

#include <condition_variable>
#include <deque>
#include <functional>
#include <mutex>

#include "of_process.h"

namespace hopsml {

// Members of a group make the same calls in the same order. TensorFlow says in which order they begin (an operation waits for
// the one before it, by its resource); one queue keeps it, and no thread of TensorFlow's own waits for other members.
class CallQueue {
 public:
  static CallQueue& OfProcess() { return hopsml::OfProcess<CallQueue>(); }

  void Add(std::function<void()> call);

  // Memory for `size` bytes, valid until the next call asks; for calls of the queue alone.
  char* Scratch(size_t size);

 private:
  void Serve();

  std::mutex mutex_;
  std::condition_variable added_;
  std::deque<std::function<void()>> calls_;
  char* scratch_ = nullptr;
  size_t scratch_size_ = 0;
  bool started_ = false;  // with the first call: forks come before it
};

}  // namespace hopsml

#endif

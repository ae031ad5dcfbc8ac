// A singleton per process.
#ifndef HOPSML_TENSORFLOW_OF_PROCESS_H
#define HOPSML_TENSORFLOW_OF_PROCESS_H

#include <pthread.h>

#include <atomic>

namespace hopsml {

// A fork gets a new one, as threads are not inherited. Never deleted: a call may be in progress while the process ends,
// and the state of the parent's object is unknown in a fork.
template <typename Object>
Object& OfProcess() {
  static std::atomic<Object*> object;
  static const bool made = [] {
    object = new Object;
    pthread_atfork(nullptr, nullptr, [] { object = new Object; });
    return true;
  }();
  static_cast<void>(made);
  return *object;
}

}  // namespace hopsml

#endif

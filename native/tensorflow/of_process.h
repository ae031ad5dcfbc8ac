// An object that each process has one of.
#ifndef HOPSML_TENSORFLOW_OF_PROCESS_H
#define HOPSML_TENSORFLOW_OF_PROCESS_H

#include <pthread.h>

#include <atomic>

namespace hopsml {

// A fork has one of its own, for threads do not come along. Never deleted: a call may be under way while the process ends, and
// a fork cannot tell what state its parent's was in.
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

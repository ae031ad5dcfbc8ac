// What a compiler's headers use of a newer libstdc++ or glibc than those of manylinux_2_28: linked into each library of
// the portable wheel, and visible in it alone (hidden.map). libstdc++ itself stays the system's, since TensorFlow shares
// its types with the operations.
#include <condition_variable>
#include <mutex>
#include <new>

// glibc 2.32: false is always right, only slower: counters of shared pointers are then changed atomically.
extern "C" {
char __libc_single_threaded = 0;
}

namespace std {

// GLIBCXX_3.4.29
void __throw_bad_array_new_length() { throw bad_array_new_length(); }

// GLIBCXX_3.4.30, which differs from 3.4.11 only in its name: this wait is no point of cancellation that may not throw.
void condition_variable::wait(unique_lock<mutex>& lock) {
  pthread_cond_wait(native_handle(), lock.mutex()->native_handle());
}

}  // namespace std

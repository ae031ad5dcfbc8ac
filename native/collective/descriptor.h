/* A file descriptor that closes itself, and that no fork inherits.
 *
 * A child with a copy of a socket would hold it open when its parent is killed, and the peers would not notice. So
 * every fork closes all of them in the child, where their owners detect another epoch and do not use them. */
#ifndef HOPSML_COLLECTIVE_DESCRIPTOR_H
#define HOPSML_COLLECTIVE_DESCRIPTOR_H

#include <cstdint>
#include <mutex>

namespace hopsml {

/* Returns the number of forks between the process that loaded the library and this one. */
uint32_t fork_epoch();
/* A mutex that is never held by another thread in a child right after a fork. */
std::mutex& fork_mutex();

class Descriptor {
 public:
  Descriptor() = default;
  explicit Descriptor(int number); /* owns `number`; negative: none */
  Descriptor(Descriptor&& other) noexcept;
  Descriptor& operator=(Descriptor&& other) noexcept;
  Descriptor(const Descriptor&) = delete;
  Descriptor& operator=(const Descriptor&) = delete;
  ~Descriptor() { close(); }

  int get() const { return number_; }
  explicit operator bool() const { return number_ >= 0; }
  void close();

 private:
  int number_ = -1;
  uint32_t epoch_ = 0;
};

}  // namespace hopsml

#endif

/* A file descriptor that closes itself, and that no fork inherits.
 *
 * A child that held a copy of a socket would keep it open when its parent is killed, and the peers would not notice. So
 * every fork closes all of them in the child, where their owners find themselves in another epoch and leave them alone.
 */
#ifndef HOPSML_COLLECTIVE_DESCRIPTOR_H
#define HOPSML_COLLECTIVE_DESCRIPTOR_H

#include <cstdint>
#include <mutex>

namespace hopsml {

/* Counts the forks between the process that loaded the library and this one. */
uint32_t fork_epoch();
/* A mutex that no other thread holds in a child at its birth. */
std::mutex& fork_mutex();

class Descriptor {
 public:
  Descriptor() = default;
  explicit Descriptor(int number); /* takes it over; negative: none */
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

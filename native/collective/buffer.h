/* Memory that is reused by the next call, as the system would have to find and clear it each time. */
#ifndef HOPSML_COLLECTIVE_BUFFER_H
#define HOPSML_COLLECTIVE_BUFFER_H

#include <cstddef>
#include <cstdint>
#include <memory>

namespace hopsml {

class Buffer {
 public:
  /* Returns at least so many bytes of any content; growing discards the previous content. */
  uint8_t* of(size_t size) {
    if (size > size_) {
      memory_.reset();
      memory_.reset(new uint8_t[size]);
      size_ = size;
    }
    return memory_.get();
  }

 private:
  std::unique_ptr<uint8_t[]> memory_;
  size_t size_ = 0;
};

}  // namespace hopsml

#endif

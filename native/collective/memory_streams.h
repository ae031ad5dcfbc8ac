/* Sources and sinks that are plain memory, and chains of several. */
#ifndef HOPSML_COLLECTIVE_MEMORY_STREAMS_H
#define HOPSML_COLLECTIVE_MEMORY_STREAMS_H

#include <cstdint>

#include "streams.h"

namespace hopsml {

class MemorySource : public Source {
 public:
  /* `ready`: how many bytes are available by now; none: all. */
  MemorySource(const void* data, size_t size, const size_t* ready = nullptr)
      : data_(static_cast<uint8_t*>(const_cast<void*>(data))), size_(size), ready_(ready) {}
  Span next() override { return {data_ + at_, (ready_ != nullptr ? *ready_ : size_) - at_}; }
  void went(size_t size) override { at_ += size; }
  bool done() const override { return at_ == size_; }

 private:
  uint8_t* data_;
  size_t size_, at_ = 0;
  const size_t* ready_;
};

class MemorySink : public Sink {
 public:
  /* `ready`: counter of received bytes. */
  MemorySink(void* data, size_t size, size_t* ready = nullptr)
      : data_(static_cast<uint8_t*>(data)), size_(size), ready_(ready) {}
  Span room() override { return {data_ + at_, size_ - at_}; }
  void came(size_t size) override {
    at_ += size;
    if (ready_ != nullptr) *ready_ = at_;
  }
  bool done() const override { return at_ == size_; }

 private:
  uint8_t* data_;
  size_t size_, at_ = 0;
  size_t* ready_;
};

/* Several streams one after the other. */
template <typename Stream>
class Chained {
 public:
  void add(std::unique_ptr<Stream> next) { all_.push_back(std::move(next)); }

 protected:
  Stream& current() {
    while (at_ + 1 < all_.size() && all_[at_]->done()) at_++;
    return *all_[at_];
  }
  bool all_done() const {
    for (size_t i = at_; i < all_.size(); i++)
      if (!all_[i]->done()) return false;
    return true;
  }

 private:
  std::vector<std::unique_ptr<Stream>> all_;
  size_t at_ = 0;
};

class SourceChain : public Source, public Chained<Source> {
 public:
  Span next() override { return current().next(); }
  void went(size_t size) override { current().went(size); }
  bool done() const override { return all_done(); }
};

class SinkChain : public Sink, public Chained<Sink> {
 public:
  Span room() override { return current().room(); }
  void came(size_t size) override { current().came(size); }
  bool done() const override { return all_done(); }
};

}  // namespace hopsml

#endif

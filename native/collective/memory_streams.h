/* Sources and sinks that are plain memory. */
#ifndef HOPSML_COLLECTIVE_MEMORY_STREAMS_H
#define HOPSML_COLLECTIVE_MEMORY_STREAMS_H

#include <cstdint>

#include "streams.h"

namespace hopsml {

class MemorySource : public Source {
 public:
  /* `ready`: how much of it there is by now; none: all. */
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
  MemorySink(void* data, size_t size) : data_(static_cast<uint8_t*>(data)), size_(size) {}
  Span room() override { return {data_ + at_, size_ - at_}; }
  void came(size_t size) override { at_ += size; }
  bool done() const override { return at_ == size_; }

 private:
  uint8_t* data_;
  size_t size_, at_ = 0;
};

/* One after the other. */
class SourceChain : public Source {
 public:
  SourceChain(std::unique_ptr<Source> first, std::unique_ptr<Source> second)
      : first_(std::move(first)), second_(std::move(second)) {}
  Span next() override { return current().next(); }
  void went(size_t size) override { current().went(size); }
  bool done() const override { return first_->done() && second_->done(); }

 private:
  Source& current() { return first_->done() ? *second_ : *first_; }
  std::unique_ptr<Source> first_, second_;
};

class SinkChain : public Sink {
 public:
  SinkChain(std::unique_ptr<Sink> first, std::unique_ptr<Sink> second)
      : first_(std::move(first)), second_(std::move(second)) {}
  Span room() override { return current().room(); }
  void came(size_t size) override { current().came(size); }
  bool done() const override { return first_->done() && second_->done(); }

 private:
  Sink& current() { return first_->done() ? *second_ : *first_; }
  std::unique_ptr<Sink> first_, second_;
};

}  // namespace hopsml

#endif

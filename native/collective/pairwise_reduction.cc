#include "pairwise_reduction.h"

#include "element_types.h"
#include "memory_streams.h"
#include "neighbours.h"
#include "parts.h"
#include "reduce_kernels.h"
#include "reducing_sink.h"

namespace hopsml {

PairwiseReduction::PairwiseReduction(const Call& call, hopsml_reduction reduction, size_t index,
                                     const std::vector<int32_t>& ranks, Streams& streams, std::vector<uint8_t>& aside)
    : call_(call),
      type_(hopsml_type(call.header.type)),
      is_mean_(reduction == HOPSML_MEAN),
      reduction_(is_mean_ ? HOPSML_SUM : reduction),
      index_(index),
      ranks_(ranks),
      streams_(streams),
      aside_(aside),
      element_(element_size(type_)),
      count_(call.header.count) {
  while (2 * power_ <= ranks.size()) power_ *= 2;
  extra_ = ranks.size() - power_;
  place_ = index_ < 2 * extra_ ? index_ / 2 : index_ - extra_;
}

void PairwiseReduction::run(void* out, bool whole) {
  out_ = static_cast<uint8_t*>(out);
  bool is_paired = index_ < 2 * extra_;
  if (is_paired && index_ % 2 == 0) {
    exchange(index_ + 1, gives(0, count_), nullptr);
    return exchange(index_ + 1, nullptr, gets(0, count_));
  }
  if (is_paired) exchange(index_ - 1, nullptr, adds(0, count_, false));
  if (whole)
    double_up();
  else
    halve();
  if (is_paired) exchange(index_ - 1, gives(0, count_), nullptr);
}

void PairwiseReduction::double_up() {
  std::vector<uint8_t> theirs(count_ * element_);
  for (size_t mask = 1; mask < power_; mask *= 2) {
    exchange(index_at(place_ ^ mask), gives(0, count_), std::make_unique<MemorySink>(theirs.data(), theirs.size()));
    const void* sources[] = {out_, theirs.data()};
    if (place_ & mask) std::swap(sources[0], sources[1]);
    reduce(type_, reduction_, sources, 2, out_, count_);
  }
  divide_mean(0, count_);
}

void PairwiseReduction::halve() {
  struct Range {
    size_t begin, end;
  };
  std::vector<Range> ranges{{0, count_}}; /* elements that this member has handled, step by step */
  for (size_t mask = 1; mask < power_; mask *= 2) {
    Range whole = ranges.back();
    size_t middle = whole.begin + (whole.end - whole.begin) / 2;
    Range lower{whole.begin, middle}, upper{middle, whole.end};
    bool keeps_lower = (place_ & mask) == 0;
    Range kept = keeps_lower ? lower : upper, given = keeps_lower ? upper : lower;
    exchange(index_at(place_ ^ mask), gives(given.begin, given.end), adds(kept.begin, kept.end, keeps_lower));
    ranges.push_back(kept);
  }
  divide_mean(ranges.back().begin, ranges.back().end);
  for (size_t mask = power_ / 2; mask > 0; mask /= 2) {
    Range own = ranges.back();
    ranges.pop_back();
    Range whole = ranges.back();
    auto theirs = (place_ & mask) == 0 ? gets(own.end, whole.end) : gets(whole.begin, own.begin);
    exchange(index_at(place_ ^ mask), gives(own.begin, own.end), std::move(theirs));
  }
}

void PairwiseReduction::exchange(size_t partner, std::unique_ptr<Source> source, std::unique_ptr<Sink> sink) {
  std::vector<Way> ways;
  if (!has_met_neighbours_) ways = with_neighbours(index_, ranks_);
  has_met_neighbours_ = true;
  Way way{};
  way.index = partner, way.rank = ranks_[partner];
  way.sends = source != nullptr, way.receives = sink != nullptr;
  way.source = std::move(source), way.sink = std::move(sink);
  way.queues = true;
  ways.push_back(std::move(way));
  streams_.run(ways, call_);
}

std::unique_ptr<Source> PairwiseReduction::gives(size_t begin, size_t end) const {
  return std::make_unique<MemorySource>(out_ + begin * element_, (end - begin) * element_);
}

std::unique_ptr<Sink> PairwiseReduction::gets(size_t begin, size_t end) const {
  return std::make_unique<MemorySink>(out_ + begin * element_, (end - begin) * element_);
}

std::unique_ptr<Sink> PairwiseReduction::adds(size_t begin, size_t end, bool own_first) const {
  uint8_t* own = out_ + begin * element_;
  return std::make_unique<ReducingSink>(Pairing{type_, reduction_, own_first, 1}, own, own, end - begin, aside_);
}

void PairwiseReduction::divide_mean(size_t begin, size_t end) const {
  if (is_mean_) divide(type_, out_ + begin * element_, end - begin, ranks_.size());
}

}  // namespace hopsml

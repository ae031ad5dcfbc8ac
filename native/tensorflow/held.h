// Calls that one step stores and whose results a later step collects: reductions during the next step's computation.
#ifndef HOPSML_TENSORFLOW_HELD_H
#define HOPSML_TENSORFLOW_HELD_H

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "call.h"

namespace hopsml {

// A call to the group, which is made once, by the queue.
class HeldCall {
 public:
  using Call = std::function<absl::Status(const Group& group, std::vector<tensorflow::Tensor>* results)>;

  // `generation`: of the group for which it was stored.
  HeldCall(uint64_t generation, Call call) : generation_(generation), call_(std::move(call)) {}

  // Returns whether it belongs to `group`. A resumable group settles calls in progress when its members change.
  bool IsOf(const Group& group) const {
    return hopsml_resumable(group.get()) != 0 || hopsml_generation(group.get()) == generation_;
  }
  // Makes the call, unless it has been made.
  void Make(const Group& group);
  const absl::Status& status() const { return status_; }
  std::vector<tensorflow::Tensor> TakeResults() { return std::move(results_); }

 private:
  const uint64_t generation_;
  Call call_;
  bool made_ = false;
  absl::Status status_;
  std::vector<tensorflow::Tensor> results_;
};

// The held calls of this process, each in a separate slot.
class HeldCalls {
 public:
  static HeldCalls& OfProcess() { return hopsml::OfProcess<HeldCalls>(); }

  // Replaces the previous call of the slot.
  void Hold(const std::string& slot, std::shared_ptr<HeldCall> call);
  // Returns the calls of `group` that were stored since the last query, in their order.
  std::vector<std::shared_ptr<HeldCall>> Released(const Group& group);
  // Removes and returns the slot's call of `group`; nullptr for none.
  std::shared_ptr<HeldCall> Take(const std::string& slot, const Group& group);
  // Returns the number of released calls that have not been collected, without these.
  int64_t ToCollect(const std::vector<std::shared_ptr<HeldCall>>& but);
  // Removes those calls, or all others.
  void Drop(const std::vector<std::shared_ptr<HeldCall>>& calls, bool those);
  bool Has(const std::string& slot, const Group& group);

 private:
  std::mutex mutex_;
  std::map<std::string, std::shared_ptr<HeldCall>> by_slot_;
  std::vector<std::shared_ptr<HeldCall>> waiting_;
};

}  // namespace hopsml

#endif

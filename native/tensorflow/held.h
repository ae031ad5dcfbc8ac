// Calls that one step gives and a later one takes the results of: what is reduced while the next step computes.
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

  // `generation`: of the group to which it was given.
  HeldCall(uint64_t generation, Call call) : generation_(generation), call_(std::move(call)) {}

  // Whether it is one of `group`. A group that goes on with other members settles what was under way among them.
  bool IsOf(const Group& group) const {
    return hopsml_resumable(group.get()) != 0 || hopsml_generation(group.get()) == generation_;
  }
  // Makes it, unless it has been made.
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

// The held calls of this process, each in a slot of its own.
class HeldCalls {
 public:
  static HeldCalls& OfProcess() { return hopsml::OfProcess<HeldCalls>(); }

  // In the place of what the slot had before.
  void Hold(const std::string& slot, std::shared_ptr<HeldCall> call);
  // Those of `group` that were given since this was asked last, in their order.
  std::vector<std::shared_ptr<HeldCall>> Released(const Group& group);
  // What the slot has of `group`, which has it no longer; nullptr for nothing.
  std::shared_ptr<HeldCall> Take(const std::string& slot, const Group& group);
  // How many have been released, and not been taken, beside those.
  int64_t ToCollect(const std::vector<std::shared_ptr<HeldCall>>& but);
  // Forgets those calls, or all others.
  void Drop(const std::vector<std::shared_ptr<HeldCall>>& calls, bool those);
  bool Has(const std::string& slot, const Group& group);

 private:
  std::mutex mutex_;
  std::map<std::string, std::shared_ptr<HeldCall>> by_slot_;
  std::vector<std::shared_ptr<HeldCall>> waiting_;
};

}  // namespace hopsml

#endif

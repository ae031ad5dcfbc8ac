#include "call.h"

#include <exception>
#include <mutex>
#include <utility>

#include "tensorflow/core/framework/cancellation.h"
#include "tensorflow/core/platform/env.h"

namespace hopsml {

namespace {

using ::tensorflow::CancellationManager;
using ::tensorflow::CancellationToken;
using ::tensorflow::OpKernelContext;

// A call that a step has reached is made even if the step is cancelled, because the other members make it, too, and it
// usually ends by itself. Otherwise this member leaves the group: its next call could be combined with another one of
// the others.
constexpr int64_t kGraceMicros = 2'000'000;

// One execution of an operation, which the step may cancel from another thread.
class Execution : public std::enable_shared_from_this<Execution> {
 public:
  void Begin(Group group) {
    std::lock_guard<std::mutex> lock(mutex_);
    group_ = std::move(group);
    if (cancelled_) LeaveSoon();
  }

  void End() {
    std::lock_guard<std::mutex> lock(mutex_);
    group_ = nullptr;
  }

  void Cancel() {
    std::lock_guard<std::mutex> lock(mutex_);
    cancelled_ = true;
    if (group_ != nullptr) LeaveSoon();
  }

 private:
  void LeaveSoon() {
    tensorflow::Env::Default()->SchedClosureAfter(kGraceMicros, [execution = shared_from_this()] { execution->Leave(); });
  }

  void Leave() {
    Group group;
    {
      std::lock_guard<std::mutex> lock(mutex_);
      group = group_;
    }
    if (group != nullptr) hopsml_end(group.get(), "the step that this member was in has been cancelled");
  }

  std::mutex mutex_;
  Group group_;
  bool cancelled_ = false;
};

}  // namespace

Group CurrentGroup() {
  hopsml_group* current = hopsml_current();
  return current == nullptr ? nullptr : Group(current, hopsml_release);
}

absl::Status NoGroup() {
  return absl::FailedPreconditionError(
      "this process is in no group: it has not been formed yet, or has been left and no other one was formed since");
}

absl::Status StatusOf(hopsml_status status, const Group& group, const std::string& what) {
  if (status == HOPSML_OK) return absl::OkStatus();
  const std::string problem = hopsml_problem(group.get());
  const std::string text = what + ": " + (problem.empty() ? "failed" : problem);
  switch (status) {
    case HOPSML_PEER_LOST:
      return absl::UnavailableError(text);
    case HOPSML_DEADLINE:
      return absl::DeadlineExceededError(text);
    case HOPSML_MISMATCH:
    case HOPSML_ARGUMENT:
      return absl::InvalidArgumentError(text);
    case HOPSML_REFUSED:
      return absl::PermissionDeniedError(text);
    case HOPSML_SYSTEM:
      return absl::ResourceExhaustedError(text);
    default:
      return absl::AbortedError(text);
  }
}

std::string Described(tensorflow::DataType type, const tensorflow::TensorShape& shape) {
  return tensorflow::DataTypeString(type) + shape.DebugString();
}

absl::Status Allocate(tensorflow::DataType type, const tensorflow::TensorShape& shape, tensorflow::Tensor* tensor) {
  *tensor = tensorflow::Tensor(type, shape);
  if (tensor->IsInitialized() || shape.num_elements() == 0) return absl::OkStatus();
  return absl::ResourceExhaustedError("no memory for " + Described(type, shape));
}

void CallKernel::ComputeAsync(OpKernelContext* context, DoneCallback done) {
  auto execution = std::make_shared<Execution>();
  CancellationManager* manager = context->cancellation_manager();
  const CancellationToken token =
      manager == nullptr ? CancellationManager::kInvalidToken : manager->get_cancellation_token();
  if (manager != nullptr && !manager->RegisterCallback(token, [execution] { execution->Cancel(); })) {
    execution->Cancel();
    manager = nullptr;
  }
  execution->Begin(CurrentGroup());  // calls before it in the queue may wait for a member, too
  CallQueue::OfProcess().Add([this, context, execution, manager, token, done = std::move(done)] {
    Group group = CurrentGroup();
    absl::Status status;
    if (group == nullptr) {
      status = NoGroup();
    } else {
      execution->Begin(group);
      try {
        status = Call(context, group);
      } catch (const std::exception& error) {  // out of memory
        status = absl::ResourceExhaustedError(name() + ": " + error.what());
      }
    }
    execution->End();
    group = nullptr;
    if (manager != nullptr) manager->DeregisterCallback(token);
    if (!status.ok()) context->SetStatus(status);
    done();
  });
}

}  // namespace hopsml

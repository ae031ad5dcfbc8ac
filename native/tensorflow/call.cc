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

// A call that is under way when its step is cancelled mostly ends by itself, for the other members are in it, too. If not, this
// member leaves the group: nobody can tell what the others would add to its next call.
constexpr int64_t kGraceMicros = 2'000'000;

// One execution of an operation, which the step may cancel from another thread.
class Execution {
 public:
  // False where the step was cancelled before.
  bool Begin(Group group) {
    std::lock_guard<std::mutex> lock(mutex_);
    group_ = std::move(group);
    return !cancelled_;
  }

  void End() {
    std::lock_guard<std::mutex> lock(mutex_);
    group_ = nullptr;
  }

  static void Cancel(std::shared_ptr<Execution> execution) {
    {
      std::lock_guard<std::mutex> lock(execution->mutex_);
      execution->cancelled_ = true;
      if (execution->group_ == nullptr) return;
    }
    tensorflow::Env::Default()->SchedClosureAfter(kGraceMicros, [execution] { execution->Leave(); });
  }

 private:
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

void CallKernel::ComputeAsync(OpKernelContext* context, DoneCallback done) {
  auto execution = std::make_shared<Execution>();
  CancellationManager* manager = context->cancellation_manager();
  const CancellationToken token =
      manager == nullptr ? CancellationManager::kInvalidToken : manager->get_cancellation_token();
  if (manager != nullptr && !manager->RegisterCallback(token, [execution] { Execution::Cancel(execution); })) {
    context->SetStatus(absl::CancelledError(name() + ": the step has been cancelled"));
    done();
    return;
  }
  CallQueue::OfProcess().Add([this, context, execution, manager, token, done = std::move(done)] {
    Group group = CurrentGroup();
    absl::Status status;
    if (group == nullptr) {
      status = NoGroup();
    } else if (!execution->Begin(group)) {
      status = absl::CancelledError(name() + ": the step has been cancelled");
    } else {
      try {
        status = Call(context, group);
      } catch (const std::exception& error) {  // memory
        status = absl::ResourceExhaustedError(name() + ": " + error.what());
      }
      execution->End();
    }
    group = nullptr;
    if (manager != nullptr) manager->DeregisterCallback(token);
    if (!status.ok()) context->SetStatus(status);
    done();
  });
}

}  // namespace hopsml

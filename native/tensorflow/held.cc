// HopsmlHoldAllReduce and HopsmlHoldAllGather store a call, HopsmlRelease makes the stored calls, HopsmlCollect returns
// the result of one; HopsmlHolds returns whether there is one to collect.
//
// Between storing and making a call the rest of the step runs: its other calls to the group come first, so that they
// need not wait for data that is sent during the next step. All members do each in the same order, by their programs. A
// newcomer to the group has stored nothing: then no member makes the stored calls, and all begin alike.
#include "held.h"

#include <algorithm>
#include <iterator>

#include "all_reduce.h"
#include "exchange.h"

namespace hopsml {

using ::tensorflow::OpKernel;
using ::tensorflow::OpKernelConstruction;
using ::tensorflow::OpKernelContext;
using ::tensorflow::Tensor;
using ::tensorflow::TensorShape;

void HeldCall::Make(const Group& group) {
  if (std::exchange(made_, true)) return;
  try {
    status_ = call_(group, &results_);
  } catch (const std::exception& error) {  // out of memory
    status_ = absl::ResourceExhaustedError(error.what());
  }
  call_ = nullptr;  // with the stored tensors
}

void HeldCalls::Hold(const std::string& slot, std::shared_ptr<HeldCall> call) {
  std::lock_guard<std::mutex> lock(mutex_);
  by_slot_[slot] = call;
  waiting_.push_back(std::move(call));
}

std::vector<std::shared_ptr<HeldCall>> HeldCalls::Released(const Group& group) {
  std::lock_guard<std::mutex> lock(mutex_);
  std::vector<std::shared_ptr<HeldCall>> released;
  for (auto& call : waiting_) {
    if (call->IsOf(group)) released.push_back(std::move(call));
  }
  waiting_.clear();
  return released;
}

std::shared_ptr<HeldCall> HeldCalls::Take(const std::string& slot, const Group& group) {
  std::lock_guard<std::mutex> lock(mutex_);
  auto found = by_slot_.find(slot);
  if (found == by_slot_.end()) return nullptr;
  std::shared_ptr<HeldCall> call = std::move(found->second);
  by_slot_.erase(found);
  return call->IsOf(group) ? call : nullptr;
}

int64_t HeldCalls::ToCollect(const std::vector<std::shared_ptr<HeldCall>>& but) {
  std::lock_guard<std::mutex> lock(mutex_);
  return std::count_if(by_slot_.begin(), by_slot_.end(), [&but](const auto& one) {
    return std::find(but.begin(), but.end(), one.second) == but.end();
  });
}

void HeldCalls::Drop(const std::vector<std::shared_ptr<HeldCall>>& calls, bool those) {
  std::lock_guard<std::mutex> lock(mutex_);
  for (auto one = by_slot_.begin(); one != by_slot_.end();) {
    const bool named = std::find(calls.begin(), calls.end(), one->second) != calls.end();
    one = named == those ? by_slot_.erase(one) : std::next(one);
  }
}

bool HeldCalls::Has(const std::string& slot, const Group& group) {
  std::lock_guard<std::mutex> lock(mutex_);
  auto found = by_slot_.find(slot);
  return found != by_slot_.end() && found->second->IsOf(group);
}

namespace {

class HoldKernel : public OpKernel {
 public:
  explicit HoldKernel(OpKernelConstruction* context) : OpKernel(context) {
    OP_REQUIRES_OK(context, context->GetAttr("slot", &slot_));
  }

  void Compute(OpKernelContext* context) override {
    const Group group = CurrentGroup();
    OP_REQUIRES(context, group != nullptr, NoGroup());
    std::vector<Tensor> values;  // share the memory of the inputs, which is not written any more
    for (int i = 1; i < context->num_inputs(); ++i) values.push_back(context->input(i));
    auto call = std::make_shared<HeldCall>(hopsml_generation(group.get()), CallOn(std::move(values)));
    HeldCalls::OfProcess().Hold(slot_, std::move(call));
  }

 protected:
  // The returned call needs nothing of the kernel, which may be destroyed by then.
  virtual HeldCall::Call CallOn(std::vector<Tensor> values) const = 0;

 private:
  std::string slot_;
};

class HoldAllReduceKernel : public HoldKernel {
 public:
  explicit HoldAllReduceKernel(OpKernelConstruction* context)
      : HoldKernel(context), reduction_(std::make_shared<AllReduction>(context)) {}

 protected:
  HeldCall::Call CallOn(std::vector<Tensor> values) const override {
    return [reduction = reduction_, values = std::move(values)](const Group& group, std::vector<Tensor>* results) {
      std::vector<const Tensor*> from;
      std::vector<Tensor*> to;
      results->resize(values.size());
      for (size_t i = 0; i < values.size(); ++i) {
        Tensor& result = (*results)[i];
        if (values[i].RefCountIsOne() && !hopsml_resumable(group.get())) {
          result = values[i];  // no other reference exists
        } else {
          TF_RETURN_IF_ERROR(Allocate(values[i].dtype(), values[i].shape(), &result));
        }
        from.push_back(&values[i]);
        to.push_back(&result);
      }
      return reduction->Run(from, to, group);
    };
  }

 private:
  const std::shared_ptr<const AllReduction> reduction_;
};

class HoldAllGatherKernel : public HoldKernel {
 public:
  explicit HoldAllGatherKernel(OpKernelConstruction* context) : HoldKernel(context) {
    OP_REQUIRES_OK(context, context->GetAttr("label", &label_));
  }

 protected:
  HeldCall::Call CallOn(std::vector<Tensor> values) const override {
    return [label = label_, value = std::move(values[0])](const Group& group, std::vector<Tensor>* results) {
      Tensor gathered, rows;
      TF_RETURN_IF_ERROR(GatherRows(value, label, group, &gathered, &rows));
      results->push_back(gathered);
      return absl::OkStatus();
    };
  }

 private:
  std::string label_;
};

class ReleaseKernel : public CallKernel {
 public:
  using CallKernel::CallKernel;

 protected:
  absl::Status Call(OpKernelContext* context, const Group& group) override {
    auto released = HeldCalls::OfProcess().Released(group);
    if (hopsml_resumable(group.get())) {
      HeldCalls& held = HeldCalls::OfProcess();
      // Steps that only accumulate store nothing and collect nothing: earlier calls stay, if all members have them.
      int64_t least[] = {static_cast<int64_t>(released.size()), held.ToCollect(released)};
      const char* const what = "whether all have gradients of the step before";
      TF_RETURN_IF_ERROR(StatusOf(hopsml_all_reduce(group.get(), least, least, 2, HOPSML_INT64, HOPSML_MIN,
                                                    HOPSML_WIRE_SAME, what),
                                  group, what));
      if (least[1] == 0) held.Drop(released, false);
      if (least[0] == 0) {
        held.Drop(released, true);
        return absl::OkStatus();
      }
    }
    // In the queue before this operation is done, and so before the program's next call.
    for (auto& call : released) {
      CallQueue::OfProcess().Add([call = std::move(call)] {
        const Group group = CurrentGroup();
        if (group != nullptr && call->IsOf(group)) call->Make(group);
      });
    }
    return absl::OkStatus();
  }
};

class CollectKernel : public CallKernel {
 public:
  explicit CollectKernel(OpKernelConstruction* context) : CallKernel(context) {
    OP_REQUIRES_OK(context, context->GetAttr("slot", &slot_));
  }

 protected:
  absl::Status Call(OpKernelContext* context, const Group& group) override {
    const std::shared_ptr<HeldCall> call = HeldCalls::OfProcess().Take(slot_, group);
    Tensor* there;
    TF_RETURN_IF_ERROR(context->allocate_output("there", TensorShape({}), &there));
    there->scalar<bool>()() = call != nullptr;
    if (call == nullptr) {
      for (int i = 0; i + 1 < context->num_outputs(); ++i) {
        Tensor* nothing;
        TF_RETURN_IF_ERROR(context->allocate_output(i, TensorShape({0}), &nothing));
      }
      return absl::OkStatus();
    }
    call->Make(group);  // if two are stored within one step
    TF_RETURN_IF_ERROR(call->status());
    int output = 0;
    for (Tensor& result : call->TakeResults()) context->set_output(output++, std::move(result));
    return absl::OkStatus();
  }

 private:
  std::string slot_;
};

class HoldsKernel : public OpKernel {
 public:
  explicit HoldsKernel(OpKernelConstruction* context) : OpKernel(context) {
    OP_REQUIRES_OK(context, context->GetAttr("slot", &slot_));
  }

  void Compute(OpKernelContext* context) override {
    Tensor* holds;
    OP_REQUIRES_OK(context, context->allocate_output(0, TensorShape({}), &holds));
    const Group group = CurrentGroup();
    holds->scalar<bool>()() = group != nullptr && HeldCalls::OfProcess().Has(slot_, group);
  }

 private:
  std::string slot_;
};

REGISTER_KERNEL_BUILDER(Name("HopsmlHoldAllReduce").Device(tensorflow::DEVICE_CPU), HoldAllReduceKernel);
REGISTER_KERNEL_BUILDER(Name("HopsmlHoldAllGather").Device(tensorflow::DEVICE_CPU), HoldAllGatherKernel);
REGISTER_KERNEL_BUILDER(Name("HopsmlRelease").Device(tensorflow::DEVICE_CPU), ReleaseKernel);
REGISTER_KERNEL_BUILDER(Name("HopsmlCollect").Device(tensorflow::DEVICE_CPU), CollectKernel);
REGISTER_KERNEL_BUILDER(Name("HopsmlHolds").Device(tensorflow::DEVICE_CPU), HoldsKernel);

}  // namespace

}  // namespace hopsml

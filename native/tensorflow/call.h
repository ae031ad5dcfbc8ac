// Common parts of all operations: the current group, the queue, conversion of statuses, cancellation.
#ifndef HOPSML_TENSORFLOW_CALL_H
#define HOPSML_TENSORFLOW_CALL_H

#include <memory>
#include <string>

#include "../collective/collective.h"
#include "queue.h"
#include "tensorflow/core/framework/op_kernel.h"

namespace hopsml {

using Group = std::shared_ptr<hopsml_group>;

// Returns the group that this process is in now; nullptr for none.
Group CurrentGroup();

absl::Status NoGroup();

// Converts the status of a call to `group` for TensorFlow, with the reason and the rank from the group; `what` was
// called.
absl::Status StatusOf(hopsml_status status, const Group& group, const std::string& what);

// Returns a text such as "float32[64,512]".
std::string Described(tensorflow::DataType type, const tensorflow::TensorShape& shape);

// Allocates host memory that belongs to no operation.
absl::Status Allocate(tensorflow::DataType type, const tensorflow::TensorShape& shape, tensorflow::Tensor* tensor);

// An operation that waits for other members: its call is made by the queue's thread.
class CallKernel : public tensorflow::AsyncOpKernel {
 public:
  using AsyncOpKernel::AsyncOpKernel;
  void ComputeAsync(tensorflow::OpKernelContext* context, DoneCallback done) final;

 protected:
  // Makes the call, and sets the outputs.
  virtual absl::Status Call(tensorflow::OpKernelContext* context, const Group& group) = 0;
};

}  // namespace hopsml

#endif

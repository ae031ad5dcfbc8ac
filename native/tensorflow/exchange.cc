// HopsmlAllGather, HopsmlBroadcast, and HopsmlGroup, which says who this process is. What they send is bytes to the group.
#include <algorithm>
#include <cstring>
#include <string>
#include <vector>

#include "call.h"

namespace hopsml {

namespace {

using ::tensorflow::OpKernel;
using ::tensorflow::OpKernelConstruction;
using ::tensorflow::OpKernelContext;
using ::tensorflow::Tensor;
using ::tensorflow::TensorShape;

class LabelledKernel : public CallKernel {
 public:
  explicit LabelledKernel(OpKernelConstruction* context) : CallKernel(context) {
    OP_REQUIRES_OK(context, context->GetAttr("label", &label_));
  }

 protected:
  std::string What(const std::string& operation, const std::string& value) const {
    return operation + (label_.empty() ? " of " : " of " + label_ + " ") + value;
  }

 private:
  std::string label_;
};

// Members may have another number of rows each: first these, then the rows, filled up to the most that a member has.
class AllGatherKernel : public LabelledKernel {
 public:
  using LabelledKernel::LabelledKernel;

 protected:
  absl::Status Call(OpKernelContext* context, const Group& group) override {
    const Tensor& value = context->input(1);
    if (value.dims() < 1) return absl::InvalidArgumentError("all_gather of a scalar, which has no rows; give it a dimension");
    TensorShape shape = value.shape();
    const int size = hopsml_size(group.get());
    Tensor* rows;
    TF_RETURN_IF_ERROR(context->allocate_output(1, TensorShape({size}), &rows));
    int64_t* each = rows->flat<int64_t>().data();
    const int64_t mine = shape.dim_size(0);
    TensorShape row = shape;
    row.RemoveDim(0);
    const std::string what = What("all_gather", "rows of " + Described(value.dtype(), row));
    TF_RETURN_IF_ERROR(StatusOf(hopsml_all_gather(group.get(), &mine, each, 1, HOPSML_INT64, what.c_str()), group, what));
    int64_t total = 0, most = 0;
    for (int rank = 0; rank < size; ++rank) {
      total += each[rank];
      most = std::max(most, each[rank]);
    }
    shape.set_dim(0, total);
    Tensor* gathered;
    TF_RETURN_IF_ERROR(context->allocate_output(0, shape, &gathered));
    const size_t row_bytes = row.num_elements() * tensorflow::DataTypeSize(value.dtype());
    if (most * row_bytes == 0) return absl::OkStatus();
    char* out = static_cast<char*>(gathered->data());
    if (total == most * size) {
      return StatusOf(hopsml_all_gather(group.get(), value.data(), out, most * row_bytes, HOPSML_UINT8, what.c_str()),
                      group, what);
    }
    Tensor buffer;
    const int64_t buffer_bytes = (size + 1) * most * static_cast<int64_t>(row_bytes);
    TF_RETURN_IF_ERROR(context->allocate_temp(tensorflow::DT_UINT8, TensorShape({buffer_bytes}), &buffer));
    char* padded = static_cast<char*>(buffer.data());
    char* all = padded + most * row_bytes;
    std::memset(padded, 0, most * row_bytes);
    if (mine > 0) std::memcpy(padded, value.data(), mine * row_bytes);
    TF_RETURN_IF_ERROR(StatusOf(
        hopsml_all_gather(group.get(), padded, all, most * row_bytes, HOPSML_UINT8, what.c_str()), group, what));
    for (int rank = 0; rank < size; ++rank) {
      if (each[rank] > 0) std::memcpy(out, all + rank * most * row_bytes, each[rank] * row_bytes);
      out += each[rank] * row_bytes;
    }
    return absl::OkStatus();
  }
};

class BroadcastKernel : public LabelledKernel {
 public:
  explicit BroadcastKernel(OpKernelConstruction* context) : LabelledKernel(context) {
    OP_REQUIRES_OK(context, context->GetAttr("root", &root_));
  }

 protected:
  absl::Status Call(OpKernelContext* context, const Group& group) override {
    const Tensor& value = context->input(1);
    Tensor* received;
    TF_RETURN_IF_ERROR(context->forward_input_or_allocate_output({1}, 0, value.shape(), &received));
    const std::string what = What("broadcast", Described(value.dtype(), value.shape()));
    return StatusOf(hopsml_broadcast(group.get(), value.data(), received->data(), value.TotalBytes(), HOPSML_UINT8, root_,
                                     what.c_str()),
                    group, what);
  }

 private:
  int32_t root_;
};

class GroupKernel : public OpKernel {
 public:
  using OpKernel::OpKernel;

  void Compute(OpKernelContext* context) override {
    const Group group = CurrentGroup();
    OP_REQUIRES(context, group != nullptr, NoGroup());
    Tensor *rank, *size, *generation;
    OP_REQUIRES_OK(context, context->allocate_output(0, TensorShape({}), &rank));
    OP_REQUIRES_OK(context, context->allocate_output(1, TensorShape({}), &size));
    OP_REQUIRES_OK(context, context->allocate_output(2, TensorShape({}), &generation));
    rank->scalar<int32_t>()() = hopsml_rank(group.get());
    size->scalar<int32_t>()() = hopsml_size(group.get());
    generation->scalar<int64_t>()() = static_cast<int64_t>(hopsml_generation(group.get()));
  }
};

REGISTER_KERNEL_BUILDER(Name("HopsmlAllGather").Device(tensorflow::DEVICE_CPU), AllGatherKernel);
REGISTER_KERNEL_BUILDER(Name("HopsmlBroadcast").Device(tensorflow::DEVICE_CPU), BroadcastKernel);
REGISTER_KERNEL_BUILDER(Name("HopsmlGroup").Device(tensorflow::DEVICE_CPU), GroupKernel);

}  // namespace

}  // namespace hopsml

// HopsmlAllGather, HopsmlBroadcast, and HopsmlGroup, which returns rank and size of this process. Their data is bytes
// to the group. If the members change during one of them, it is repeated.
#include "exchange.h"

#include <algorithm>
#include <cstring>
#include <vector>

namespace hopsml {

namespace {

using ::tensorflow::OpKernel;
using ::tensorflow::OpKernelConstruction;
using ::tensorflow::OpKernelContext;
using ::tensorflow::Tensor;
using ::tensorflow::TensorShape;

// This process' rank and the size, of one generation.
struct Members {
  int32_t rank, size;
  uint64_t generation;
};

Members MembersOf(const Group& group) {
  Members members;
  do {
    members.generation = hopsml_generation(group.get());
    members.rank = hopsml_rank(group.get());
    members.size = hopsml_size(group.get());
  } while (members.generation != hopsml_generation(group.get()));
  return members;
}

std::string What(const std::string& operation, const std::string& label, const std::string& value) {
  return operation + (label.empty() ? " of " : " of " + label + " ") + value;
}

// Gathers the rows, of which each member has a given number. The returned error is TensorFlow's; `status` is the
// group's.
absl::Status Gather(const Tensor& value, const Group& group, const Members& members, const std::string& what,
                    const Tensor& rows, Tensor* gathered, hopsml_status* status) {
  const int64_t* each = rows.flat<int64_t>().data();
  const int size = members.size;
  const int64_t mine = value.dim_size(0);
  TensorShape shape = value.shape();
  int64_t total = 0, most = 0;
  for (int rank = 0; rank < size; ++rank) {
    total += each[rank];
    most = std::max(most, each[rank]);
  }
  shape.set_dim(0, 1);
  const size_t row_bytes = shape.num_elements() * tensorflow::DataTypeSize(value.dtype());
  shape.set_dim(0, total);
  TF_RETURN_IF_ERROR(Allocate(value.dtype(), shape, gathered));
  if (most * row_bytes == 0) return absl::OkStatus();
  char* out = static_cast<char*>(gathered->data());
  if (total == most * size) {
    *status = hopsml_all_gather(group.get(), value.data(), out, most * row_bytes, HOPSML_UINT8, members.generation,
                                what.c_str());
    return absl::OkStatus();
  }
  Tensor buffer;
  const int64_t buffer_bytes = (size + 1) * most * static_cast<int64_t>(row_bytes);
  TF_RETURN_IF_ERROR(Allocate(tensorflow::DT_UINT8, TensorShape({buffer_bytes}), &buffer));
  char* padded = static_cast<char*>(buffer.data());
  char* all = padded + most * row_bytes;
  std::memset(padded, 0, most * row_bytes);
  if (mine > 0) std::memcpy(padded, value.data(), mine * row_bytes);
  *status =
      hopsml_all_gather(group.get(), padded, all, most * row_bytes, HOPSML_UINT8, members.generation, what.c_str());
  if (*status != HOPSML_OK) return absl::OkStatus();
  for (int rank = 0; rank < size; ++rank) {
    if (each[rank] > 0) std::memcpy(out, all + rank * most * row_bytes, each[rank] * row_bytes);
    out += each[rank] * row_bytes;
  }
  return absl::OkStatus();
}

}  // namespace

// Members may have different numbers of rows: first the numbers are gathered, then the rows, padded to the largest
// number.
absl::Status GatherRows(const Tensor& value, const std::string& label, const Group& group, Tensor* gathered, Tensor* rows) {
  if (value.dims() < 1) return absl::InvalidArgumentError("all_gather of a scalar, which has no rows; give it a dimension");
  TensorShape row = value.shape();
  row.RemoveDim(0);
  const std::string what = What("all_gather", label, "rows of " + Described(value.dtype(), row));
  hopsml_status status = HOPSML_CHANGED;
  while (status == HOPSML_CHANGED) {
    const Members members = MembersOf(group);
    TF_RETURN_IF_ERROR(Allocate(tensorflow::DT_INT64, TensorShape({members.size}), rows));
    const int64_t mine = value.dim_size(0);
    status = hopsml_all_gather(group.get(), &mine, rows->flat<int64_t>().data(), 1, HOPSML_INT64, members.generation,
                               what.c_str());
    if (status == HOPSML_OK) TF_RETURN_IF_ERROR(Gather(value, group, members, what, *rows, gathered, &status));
  }
  return StatusOf(status, group, what);
}

namespace {

class LabelledKernel : public CallKernel {
 public:
  explicit LabelledKernel(OpKernelConstruction* context) : CallKernel(context) {
    OP_REQUIRES_OK(context, context->GetAttr("label", &label_));
  }

 protected:
  std::string label_;
};

class AllGatherKernel : public LabelledKernel {
 public:
  using LabelledKernel::LabelledKernel;

 protected:
  absl::Status Call(OpKernelContext* context, const Group& group) override {
    Tensor gathered, rows;
    TF_RETURN_IF_ERROR(GatherRows(context->input(1), label_, group, &gathered, &rows));
    context->set_output(0, gathered);
    context->set_output(1, rows);
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
    const std::string what = What("broadcast", label_, Described(value.dtype(), value.shape()));
    hopsml_status status = HOPSML_CHANGED;
    while (status == HOPSML_CHANGED) {
      status = hopsml_broadcast(group.get(), value.data(), received->data(), value.TotalBytes(), HOPSML_UINT8, root_,
                                MembersOf(group).generation, what.c_str());
    }
    return StatusOf(status, group, what);
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
    const Members members = MembersOf(group);
    rank->scalar<int32_t>()() = members.rank;
    size->scalar<int32_t>()() = members.size;
    generation->scalar<int64_t>()() = static_cast<int64_t>(members.generation);
  }
};

REGISTER_KERNEL_BUILDER(Name("HopsmlAllGather").Device(tensorflow::DEVICE_CPU), AllGatherKernel);
REGISTER_KERNEL_BUILDER(Name("HopsmlBroadcast").Device(tensorflow::DEVICE_CPU), BroadcastKernel);
REGISTER_KERNEL_BUILDER(Name("HopsmlGroup").Device(tensorflow::DEVICE_CPU), GroupKernel);

}  // namespace

}  // namespace hopsml

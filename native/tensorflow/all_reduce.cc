// HopsmlAllReduce: reduces a list of tensors, small ones in packs.
#include "all_reduce.h"

#include <cstring>

namespace hopsml {

namespace {

using ::tensorflow::OpKernelConstruction;
using ::tensorflow::OpKernelContext;
using ::tensorflow::Tensor;

// From this size on a copy into a pack costs more than a separate call.
constexpr size_t kAloneBytes = 1 << 20;

hopsml_type TypeOf(tensorflow::DataType type) {
  switch (type) {
    case tensorflow::DT_FLOAT:
      return HOPSML_FLOAT32;
    case tensorflow::DT_DOUBLE:
      return HOPSML_FLOAT64;
    case tensorflow::DT_HALF:
      return HOPSML_FLOAT16;
    case tensorflow::DT_BFLOAT16:
      return HOPSML_BFLOAT16;
    case tensorflow::DT_INT32:
      return HOPSML_INT32;
    default:
      return HOPSML_INT64;
  }
}

char* Data(Tensor* tensor) { return static_cast<char*>(tensor->data()); }
const char* Data(const Tensor& tensor) { return static_cast<const char*>(tensor.data()); }

}  // namespace

AllReduction::AllReduction(OpKernelConstruction* context) {
  std::string reduction, wire;
  int64_t pack_bytes;
  OP_REQUIRES_OK(context, context->GetAttr("reduction", &reduction));
  OP_REQUIRES_OK(context, context->GetAttr("wire", &wire));
  OP_REQUIRES_OK(context, context->GetAttr("pack_bytes", &pack_bytes));
  OP_REQUIRES_OK(context, context->GetAttr("label", &label_));
  OP_REQUIRES_OK(context, context->GetAttr("names", &names_));
  OP_REQUIRES_OK(context, context->GetAttr("T", &type_));
  OP_REQUIRES(context, wire == "same" || type_ == tensorflow::DT_FLOAT,
              absl::InvalidArgumentError("wire='" + wire + "' is for float32, these are " +
                                         tensorflow::DataTypeString(type_)));
  pack_bytes_ = pack_bytes;
  reduction_ = reduction == "mean"  ? HOPSML_MEAN
               : reduction == "min" ? HOPSML_MIN
               : reduction == "max" ? HOPSML_MAX
                                    : HOPSML_SUM;
  wire_ = wire == "float16"    ? HOPSML_WIRE_FLOAT16
          : wire == "bfloat16" ? HOPSML_WIRE_BFLOAT16
                               : HOPSML_WIRE_SAME;
}

absl::Status AllReduction::Run(const std::vector<const Tensor*>& values, const std::vector<Tensor*>& reduced,
                               const Group& group) const {
  for (const Pack& pack : Packs(values)) {
    TF_RETURN_IF_ERROR(Reduce(pack, values, reduced, group));
  }
  return absl::OkStatus();
}

// Depends on the shapes only, so that all members pack alike: the small tensors in their order, then each large one.
std::vector<AllReduction::Pack> AllReduction::Packs(const std::vector<const Tensor*>& values) const {
  std::vector<Pack> packs, alone;
  for (size_t i = 0; i < values.size(); ++i) {
    const size_t bytes = values[i]->TotalBytes();
    if (bytes >= kAloneBytes || values.size() == 1) {
      alone.push_back({{static_cast<int>(i)}, bytes});
      continue;
    }
    if (packs.empty() || packs.back().bytes + bytes > pack_bytes_) packs.emplace_back();
    packs.back().members.push_back(i);
    packs.back().bytes += bytes;
  }
  packs.insert(packs.end(), alone.begin(), alone.end());
  return packs;
}

absl::Status AllReduction::Reduce(const Pack& pack, const std::vector<const Tensor*>& values,
                                  const std::vector<Tensor*>& reduced, const Group& group) const {
  const uint64_t elements = pack.bytes / tensorflow::DataTypeSize(type_);
  const std::string what = Description(pack, values, /*with_names=*/false);
  hopsml_status status;
  if (pack.members.size() == 1) {
    const int only = pack.members[0];
    status = hopsml_all_reduce(group.get(), Data(*values[only]), Data(reduced[only]), elements, TypeOf(type_),
                               reduction_, wire_, what.c_str());
  } else {
    // The pack of a call that may have to be repeated is not overwritten: otherwise the library would copy it first.
    const size_t apart = hopsml_resumable(group.get()) ? (pack.bytes + 63) / 64 * 64 : 0;
    char* packed = CallQueue::OfProcess().Scratch(pack.bytes + apart);
    char* at = packed;
    for (int i : pack.members) {
      std::memcpy(at, Data(*values[i]), values[i]->TotalBytes());
      at += values[i]->TotalBytes();
    }
    char* result = packed + apart;
    status = hopsml_all_reduce(group.get(), packed, result, elements, TypeOf(type_), reduction_, wire_, what.c_str());
    at = result;
    for (int i : pack.members) {
      std::memcpy(Data(reduced[i]), at, values[i]->TotalBytes());
      at += values[i]->TotalBytes();
    }
  }
  if (status == HOPSML_OK) return absl::OkStatus();
  return StatusOf(status, group, Description(pack, values, /*with_names=*/true));
}

// The text that members compare. Names of tensors are for the message only: a rank that has traced more functions has
// other names for the same tensors.
std::string AllReduction::Description(const Pack& pack, const std::vector<const Tensor*>& values,
                                      bool with_names) const {
  std::string text = label_.empty() ? "all_reduce" : "all_reduce of " + label_;
  text += with_names ? ":" : " " + tensorflow::DataTypeString(type_);
  for (int i : pack.members) {
    text += " ";
    if (with_names && i < static_cast<int>(names_.size())) text += names_[i] + " ";
    text += values[i]->shape().DebugString();
  }
  if (!with_names && static_cast<int>(pack.members.size()) < static_cast<int>(values.size())) {
    text += " of " + std::to_string(values.size());
  }
  return text;
}

namespace {

class AllReduceKernel : public CallKernel {
 public:
  explicit AllReduceKernel(OpKernelConstruction* context) : CallKernel(context), reduction_(context) {}

 protected:
  absl::Status Call(OpKernelContext* context, const Group& group) override {
    const int count = context->num_inputs() - 1;
    std::vector<const Tensor*> values(count);
    std::vector<Tensor*> reduced(count);
    for (int i = 0; i < count; ++i) {
      values[i] = &context->input(i + 1);
      TF_RETURN_IF_ERROR(
          context->forward_input_or_allocate_output({i + 1}, i, values[i]->shape(), &reduced[i]));
    }
    return reduction_.Run(values, reduced, group);
  }

 private:
  const AllReduction reduction_;
};

REGISTER_KERNEL_BUILDER(Name("HopsmlAllReduce").Device(tensorflow::DEVICE_CPU), AllReduceKernel);

}  // namespace

}  // namespace hopsml

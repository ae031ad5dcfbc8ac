// The operations and the shapes of their outputs. `order`: a resource that all of them use, so that TensorFlow
// preserves the order of the program, which is the same on all ranks.
#include "tensorflow/core/framework/common_shape_fns.h"
#include "tensorflow/core/framework/op.h"
#include "tensorflow/core/framework/shape_inference.h"

namespace hopsml {

using ::tensorflow::shape_inference::DimensionHandle;
using ::tensorflow::shape_inference::InferenceContext;
using ::tensorflow::shape_inference::ShapeHandle;

REGISTER_OP("HopsmlAllReduce")
    .Input("order: resource")
    .Input("values: count * T")
    .Output("reduced: count * T")
    .Attr("T: {float, double, half, bfloat16, int32, int64}")
    .Attr("count: int >= 1")
    .Attr("reduction: {'sum', 'mean', 'min', 'max'} = 'sum'")
    .Attr("wire: {'same', 'float16', 'bfloat16'} = 'same'")
    .Attr("pack_bytes: int >= 1 = 4194304")
    .Attr("label: string = ''")
    .Attr("names: list(string) = []")
    .SetIsStateful()
    .SetIsDistributedCommunication()
    .SetShapeFn([](InferenceContext* context) {
      for (int i = 0; i < context->num_outputs(); ++i) context->set_output(i, context->input(i + 1));
      return absl::OkStatus();
    });

REGISTER_OP("HopsmlAllGather")
    .Input("order: resource")
    .Input("value: T")
    .Output("gathered: T")
    .Output("rows: int64")
    .Attr("T: {float, double, half, bfloat16, int8, uint8, int16, uint16, int32, uint32, int64, uint64, bool, complex64,"
          " complex128}")
    .Attr("label: string = ''")
    .SetIsStateful()
    .SetIsDistributedCommunication()
    .SetShapeFn([](InferenceContext* context) {
      ShapeHandle value;
      TF_RETURN_IF_ERROR(context->WithRankAtLeast(context->input(1), 1, &value));
      TF_RETURN_IF_ERROR(context->ReplaceDim(value, 0, context->UnknownDim(), &value));
      context->set_output(0, value);
      context->set_output(1, context->Vector(InferenceContext::kUnknownDim));
      return absl::OkStatus();
    });

REGISTER_OP("HopsmlBroadcast")
    .Input("order: resource")
    .Input("value: T")
    .Output("received: T")
    .Attr("T: {float, double, half, bfloat16, int8, uint8, int16, uint16, int32, uint32, int64, uint64, bool, complex64,"
          " complex128}")
    .Attr("root: int >= 0 = 0")
    .Attr("label: string = ''")
    .SetIsStateful()
    .SetIsDistributedCommunication()
    .SetShapeFn([](InferenceContext* context) {
      context->set_output(0, context->input(1));
      return absl::OkStatus();
    });

// Like HopsmlAllReduce and HopsmlAllGather, but made later: the result is in `slot`.
REGISTER_OP("HopsmlHoldAllReduce")
    .Input("order: resource")
    .Input("values: count * T")
    .Attr("T: {float, double, half, bfloat16, int32, int64}")
    .Attr("count: int >= 1")
    .Attr("slot: string")
    .Attr("reduction: {'sum', 'mean', 'min', 'max'} = 'sum'")
    .Attr("wire: {'same', 'float16', 'bfloat16'} = 'same'")
    .Attr("pack_bytes: int >= 1 = 4194304")
    .Attr("label: string = ''")
    .Attr("names: list(string) = []")
    .SetIsStateful()
    .SetIsDistributedCommunication()
    .SetShapeFn(tensorflow::shape_inference::NoOutputs);

REGISTER_OP("HopsmlHoldAllGather")
    .Input("order: resource")
    .Input("value: T")
    .Attr("T: {float, double, half, bfloat16, int32, int64}")
    .Attr("slot: string")
    .Attr("label: string = ''")
    .SetIsStateful()
    .SetIsDistributedCommunication()
    .SetShapeFn(tensorflow::shape_inference::NoOutputs);

REGISTER_OP("HopsmlRelease")
    .Input("order: resource")
    .SetIsStateful()
    .SetIsDistributedCommunication()
    .SetShapeFn(tensorflow::shape_inference::NoOutputs);

// `there`: whether the slot had a call of this generation; if not, `results` are empty.
REGISTER_OP("HopsmlCollect")
    .Input("order: resource")
    .Output("results: types")
    .Output("there: bool")
    .Attr("types: list(type) >= 1")
    .Attr("slot: string")
    .SetIsStateful()
    .SetIsDistributedCommunication()
    .SetShapeFn([](InferenceContext* context) {
      for (int i = 0; i + 1 < context->num_outputs(); ++i) context->set_output(i, context->UnknownShape());
      context->set_output(context->num_outputs() - 1, context->Scalar());
      return absl::OkStatus();
    });

REGISTER_OP("HopsmlHolds")
    .Output("holds: bool")
    .Attr("slot: string")
    .SetIsStateful()
    .SetShapeFn(tensorflow::shape_inference::ScalarShape);

REGISTER_OP("HopsmlGroup")
    .Output("rank: int32")
    .Output("size: int32")
    .Output("generation: int64")
    .SetIsStateful()
    .SetShapeFn([](InferenceContext* context) {
      for (int i = 0; i < 3; ++i) context->set_output(i, context->Scalar());
      return absl::OkStatus();
    });

}  // namespace hopsml

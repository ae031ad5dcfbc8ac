// The reduction of a list of tensors, as described by the attributes of an operation.
#ifndef HOPSML_TENSORFLOW_ALL_REDUCE_H
#define HOPSML_TENSORFLOW_ALL_REDUCE_H

#include <string>
#include <vector>

#include "call.h"

namespace hopsml {

class AllReduction {
 public:
  // Sets the context's status if an attribute is invalid.
  explicit AllReduction(tensorflow::OpKernelConstruction* context);

  // Makes a call for each pack. `reduced` have the shapes of `values`, and may be the same tensors.
  absl::Status Run(const std::vector<const tensorflow::Tensor*>& values, const std::vector<tensorflow::Tensor*>& reduced,
                   const Group& group) const;

 private:
  // Tensors that one call reduces, by their positions in the list.
  struct Pack {
    std::vector<int> members;
    size_t bytes = 0;
  };

  std::vector<Pack> Packs(const std::vector<const tensorflow::Tensor*>& values) const;
  absl::Status Reduce(const Pack& pack, const std::vector<const tensorflow::Tensor*>& values,
                      const std::vector<tensorflow::Tensor*>& reduced, const Group& group) const;
  std::string Description(const Pack& pack, const std::vector<const tensorflow::Tensor*>& values, bool with_names) const;

  tensorflow::DataType type_;
  hopsml_reduction reduction_;
  hopsml_wire wire_;
  size_t pack_bytes_;
  std::string label_;
  std::vector<std::string> names_;
};

}  // namespace hopsml

#endif

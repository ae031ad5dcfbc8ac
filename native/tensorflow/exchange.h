// Rows of all members below each other.
#ifndef HOPSML_TENSORFLOW_EXCHANGE_H
#define HOPSML_TENSORFLOW_EXCHANGE_H

#include <string>

#include "call.h"

namespace hopsml {

// `rows`: how many each member has. `label`: what they are to people; "" for nothing.
absl::Status GatherRows(const tensorflow::Tensor& value, const std::string& label, const Group& group,
                        tensorflow::Tensor* gathered, tensorflow::Tensor* rows);

}  // namespace hopsml

#endif

// Concatenation of the rows of all members.
#ifndef HOPSML_TENSORFLOW_EXCHANGE_H
#define HOPSML_TENSORFLOW_EXCHANGE_H

#include <string>

#include "call.h"

namespace hopsml {

// `rows`: the number of each member. `label`: a readable name; "" for none.
absl::Status GatherRows(const tensorflow::Tensor& value, const std::string& label, const Group& group,
                        tensorflow::Tensor* gathered, tensorflow::Tensor* rows);

}  // namespace hopsml

#endif

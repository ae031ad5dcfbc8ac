/* Division of elements between ranks. */
#ifndef HOPSML_COLLECTIVE_PARTS_H
#define HOPSML_COLLECTIVE_PARTS_H

#include <algorithm>
#include <cstddef>

namespace hopsml {

struct Part {
  size_t begin = 0, count = 0; /* elements */
};

/* Part `index` of `parts` nearly equal ones. */
inline Part part_of(size_t count, size_t parts, size_t index) {
  size_t each = count / parts, more = count % parts;
  return {index * each + std::min(index, more), each + (index < more ? 1 : 0)};
}

}  // namespace hopsml

#endif

/* The arithmetic of reductions. */
#ifndef HOPSML_COLLECTIVE_REDUCE_KERNELS_H
#define HOPSML_COLLECTIVE_REDUCE_KERNELS_H

#include <cstddef>

#include "collective.h"

namespace hopsml {

/* out[i] = the reduction of sources[0][i], sources[1][i], ... in this order; the mean divides by their number.
 *
 * `out` may be one of the sources. 16-bit floats are summed as float32 and rounded once. Sums of integers wrap around; their
 * mean is rounded toward zero. The minimum and the maximum of anything and NaN is NaN.
 */
void reduce(hopsml_type type, hopsml_reduction reduction, const void* const* sources, size_t sources_count, void* out,
            size_t count);

/* Divides a sum of `by` elements, as the mean does. */
void divide(hopsml_type type, void* elements, size_t count, size_t by);

}  // namespace hopsml

#endif

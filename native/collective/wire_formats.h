/* float32 as 16 bits on the wire, in blocks.
 *
 * All elements of a block are multiplied by one power of two, which is sent with it, so that the largest finite one is
 * just below float16's maximum: nothing overflows, and small gradients retain their digits. Infinities and NaN are
 * unchanged. bfloat16 has float32's range, and is not scaled. */
#ifndef HOPSML_COLLECTIVE_WIRE_FORMATS_H
#define HOPSML_COLLECTIVE_WIRE_FORMATS_H

#include <cstddef>
#include <cstdint>

#include "collective.h"

namespace hopsml {

constexpr size_t kWireBlock = 4096; /* elements: a block stays in the nearest cache while it is processed */

/* Returns the bytes of so many elements, all blocks together. */
size_t encoded_size(hopsml_wire wire, size_t count);
/* One block: at most kWireBlock elements. */
void encode_block(hopsml_wire wire, const float* elements, size_t count, uint8_t* bytes);
void decode_block(hopsml_wire wire, const uint8_t* bytes, size_t count, float* elements);

}  // namespace hopsml

#endif

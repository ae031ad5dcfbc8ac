/* float32 as 16 bits on the wire, in blocks.
 *
 * Of each block all elements are multiplied by one power of two, which goes with it, so that the largest finite one lies just
 * below what float16 can hold: nothing overflows, and small gradients keep their digits. Infinities and NaN stay what they
 * are. bfloat16 has float32's range, and is not scaled.
 */
#ifndef HOPSML_COLLECTIVE_WIRE_FORMATS_H
#define HOPSML_COLLECTIVE_WIRE_FORMATS_H

#include <cstddef>
#include <cstdint>

#include "collective.h"

namespace hopsml {

constexpr size_t kWireBlock = 4096; /* elements: whatever is done with them finds them in the nearest cache */

/* The bytes of so many elements, all blocks together. */
size_t encoded_size(hopsml_wire wire, size_t count);
/* One block: at most kWireBlock elements. */
void encode_block(hopsml_wire wire, const float* elements, size_t count, uint8_t* bytes);
void decode_block(hopsml_wire wire, const uint8_t* bytes, size_t count, float* elements);

}  // namespace hopsml

#endif

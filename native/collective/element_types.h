/* The types of elements: sizes, names, and the 16-bit floats for which the machine has no arithmetic. */
#ifndef HOPSML_COLLECTIVE_ELEMENT_TYPES_H
#define HOPSML_COLLECTIVE_ELEMENT_TYPES_H

#include <cstddef>
#include <cstdint>
#include <cstring>

#include "collective.h"

namespace hopsml {

bool is_type(int32_t type);
size_t element_size(hopsml_type type);
const char* type_name(hopsml_type type);

inline float float_of_bits(uint32_t bits) {
  float value;
  std::memcpy(&value, &bits, sizeof value);
  return value;
}

inline uint32_t bits_of_float(float value) {
  uint32_t bits;
  std::memcpy(&bits, &value, sizeof bits);
  return bits;
}

/* Without branches, so that the compiler vectorizes loops over them. Rounding is to the nearest, ties to even. */

inline float float_of_half(uint16_t half) {
  uint32_t magnitude = half & 0x7fffu;
  uint32_t bits = bits_of_float(float_of_bits(magnitude << 13) * 0x1p112f);
  bits |= magnitude >= 0x7c00u ? 0x7f800000u : 0u;
  return float_of_bits(bits | uint32_t(half & 0x8000u) << 16);
}

inline uint16_t half_of_float(float value) {
  uint32_t bits = bits_of_float(value), magnitude = bits & 0x7fffffffu;
  uint32_t normal = (magnitude + 0xc8000fffu + (magnitude >> 13 & 1u)) >> 13;
  uint32_t small = bits_of_float(float_of_bits(magnitude) + 0.5f) - 0x3f000000u;
  uint32_t large = magnitude > 0x7f800000u ? 0x7e00u : 0x7c00u;
  uint32_t half = magnitude < 0x38800000u ? small : normal;
  half = magnitude >= 0x47800000u ? large : half;
  return uint16_t(half | (bits >> 16 & 0x8000u));
}

inline float float_of_bfloat(uint16_t bfloat) { return float_of_bits(uint32_t(bfloat) << 16); }

inline uint16_t bfloat_of_float(float value) {
  uint32_t bits = bits_of_float(value);
  uint32_t rounded = (bits + 0x7fffu + (bits >> 16 & 1u)) >> 16;
  uint32_t quiet = bits >> 16 | 0x40u;
  return uint16_t((bits & 0x7fffffffu) > 0x7f800000u ? quiet : rounded);
}

}  // namespace hopsml

#endif

#include "wire_formats.h"

#include <algorithm>

#include "element_types.h"
#include "vectors.h"

namespace hopsml {
namespace {

/* 2 to the power of this takes a block's largest finite element to [2^14, 2^15). */
HOPSML_VECTORS int scale_exponent(const float* elements, size_t count) {
  uint32_t largest = 0;
  for (size_t i = 0; i < count; i++) {
    uint32_t magnitude = bits_of_float(elements[i]) & 0x7fffffffu;
    largest = std::max(largest, magnitude < 0x7f800000u ? magnitude : 0u);
  }
  int exponent = int(largest >> 23) - 127;
  return std::min(14 - exponent, 126);
}

float power_of_two(int exponent) { return float_of_bits(uint32_t(exponent + 127) << 23); }

HOPSML_VECTORS void encode_half(const float* elements, size_t count, float scale, uint16_t* out) {
  for (size_t i = 0; i < count; i++) out[i] = half_of_float(elements[i] * scale);
}

HOPSML_VECTORS void decode_half(const uint16_t* bytes, size_t count, float scale, float* elements) {
  for (size_t i = 0; i < count; i++) elements[i] = float_of_half(bytes[i]) * scale;
}

HOPSML_VECTORS void encode_bfloat(const float* elements, size_t count, uint16_t* out) {
  for (size_t i = 0; i < count; i++) out[i] = bfloat_of_float(elements[i]);
}

HOPSML_VECTORS void decode_bfloat(const uint16_t* bytes, size_t count, float* elements) {
  for (size_t i = 0; i < count; i++) elements[i] = float_of_bfloat(bytes[i]);
}

/* In front of each block: the exponent of its scale. */
using Prefix = int32_t;

}  // namespace

size_t encoded_size(hopsml_wire wire, size_t count) {
  if (wire == HOPSML_WIRE_SAME) return count * sizeof(float);
  return count * sizeof(uint16_t) + (count + kWireBlock - 1) / kWireBlock * sizeof(Prefix);
}

void encode_block(hopsml_wire wire, const float* elements, size_t count, uint8_t* bytes) {
  Prefix exponent = wire == HOPSML_WIRE_FLOAT16 ? scale_exponent(elements, count) : 0;
  std::memcpy(bytes, &exponent, sizeof exponent);
  auto* out = reinterpret_cast<uint16_t*>(bytes + sizeof exponent);
  if (wire == HOPSML_WIRE_FLOAT16)
    encode_half(elements, count, power_of_two(exponent), out);
  else
    encode_bfloat(elements, count, out);
}

void decode_block(hopsml_wire wire, const uint8_t* bytes, size_t count, float* elements) {
  Prefix exponent;
  std::memcpy(&exponent, bytes, sizeof exponent);
  auto* in = reinterpret_cast<const uint16_t*>(bytes + sizeof exponent);
  if (wire == HOPSML_WIRE_FLOAT16)
    decode_half(in, count, power_of_two(std::clamp(-exponent, -126, 127)), elements);
  else
    decode_bfloat(in, count, elements);
}

}  // namespace hopsml

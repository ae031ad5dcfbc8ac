#include "wire_formats.h"

#include <algorithm>
#if defined(__x86_64__)
#include <immintrin.h>
#endif

#include "element_types.h"
#include "vectors.h"

namespace hopsml {
namespace {

/* Returns the exponent of the power of two that scales a block's largest finite element to [2^14, 2^15). */
HOPSML_VECTORS int scale_exponent(const float* elements, size_t count) {
  int32_t largest = 0; /* signed: the compiler vectorizes these, twenty times as fast */
  for (size_t i = 0; i < count; i++) {
    int32_t magnitude = int32_t(bits_of_float(elements[i]) & 0x7fffffffu);
    magnitude = magnitude < 0x7f800000 ? magnitude : 0;
    largest = largest < magnitude ? magnitude : largest;
  }
  int exponent = int(largest >> 23) - 127;
  return std::min(14 - exponent, 126);
}

float power_of_two(int exponent) { return float_of_bits(uint32_t(exponent + 127) << 23); }

HOPSML_VECTORS void encode_half_plainly(const float* elements, size_t count, float scale, uint16_t* out) {
  for (size_t i = 0; i < count; i++) out[i] = half_of_float(elements[i] * scale);
}

HOPSML_VECTORS void decode_half_plainly(const uint16_t* bytes, size_t count, float scale, float* elements) {
  for (size_t i = 0; i < count; i++) elements[i] = float_of_half(bytes[i]) * scale;
}

#if defined(__x86_64__)
/* The processor's own conversion: the same values, as both round to the nearest, ties to even. */
#define HOPSML_F16C __attribute__((target("avx,f16c")))

HOPSML_F16C void encode_half_f16c(const float* elements, size_t count, float scale, uint16_t* out) {
  const __m256 factor = _mm256_set1_ps(scale);
  size_t i = 0;
  for (; i + 8 <= count; i += 8) {
    const __m256 scaled = _mm256_mul_ps(_mm256_loadu_ps(elements + i), factor);
    _mm_storeu_si128(reinterpret_cast<__m128i*>(out + i), _mm256_cvtps_ph(scaled, _MM_FROUND_TO_NEAREST_INT));
  }
  encode_half_plainly(elements + i, count - i, scale, out + i);
}

HOPSML_F16C void decode_half_f16c(const uint16_t* bytes, size_t count, float scale, float* elements) {
  const __m256 factor = _mm256_set1_ps(scale);
  size_t i = 0;
  for (; i + 8 <= count; i += 8) {
    const __m256 value = _mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(bytes + i)));
    _mm256_storeu_ps(elements + i, _mm256_mul_ps(value, factor));
  }
  decode_half_plainly(bytes + i, count - i, scale, elements + i);
}

bool has_f16c() { return __builtin_cpu_supports("avx") && __builtin_cpu_supports("f16c"); }

void encode_half(const float* elements, size_t count, float scale, uint16_t* out) {
  static const auto encode = has_f16c() ? encode_half_f16c : encode_half_plainly;
  encode(elements, count, scale, out);
}

void decode_half(const uint16_t* bytes, size_t count, float scale, float* elements) {
  static const auto decode = has_f16c() ? decode_half_f16c : decode_half_plainly;
  decode(bytes, count, scale, elements);
}
#else
void encode_half(const float* elements, size_t count, float scale, uint16_t* out) {
  encode_half_plainly(elements, count, scale, out);
}

void decode_half(const uint16_t* bytes, size_t count, float scale, float* elements) {
  decode_half_plainly(bytes, count, scale, elements);
}
#endif

HOPSML_VECTORS void encode_bfloat(const float* elements, size_t count, uint16_t* out) {
  for (size_t i = 0; i < count; i++) out[i] = bfloat_of_float(elements[i]);
}

HOPSML_VECTORS void decode_bfloat(const uint16_t* bytes, size_t count, float* elements) {
  for (size_t i = 0; i < count; i++) elements[i] = float_of_bfloat(bytes[i]);
}

/* Before each block: the exponent of its scale. */
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

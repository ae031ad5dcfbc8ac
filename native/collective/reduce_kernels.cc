#include "reduce_kernels.h"

#include <algorithm>
#include <type_traits>

#include "element_types.h"
#include "vectors.h"

namespace hopsml {
namespace {

constexpr size_t kBlock = 1024; /* elements whose sums stay in the nearest cache */

template <typename T>
struct Plain {
  using Element = T;
  using Sum = T;
  static HOPSML_INLINE Sum load(Element x) { return x; }
  static HOPSML_INLINE Element store(Sum x) { return x; }
};

struct Half {
  using Element = uint16_t;
  using Sum = float;
  static HOPSML_INLINE Sum load(Element x) { return float_of_half(x); }
  static HOPSML_INLINE Element store(Sum x) { return half_of_float(x); }
};

struct Bfloat {
  using Element = uint16_t;
  using Sum = float;
  static HOPSML_INLINE Sum load(Element x) { return float_of_bfloat(x); }
  static HOPSML_INLINE Element store(Sum x) { return bfloat_of_float(x); }
};

struct Add {
  template <typename S>
  static HOPSML_INLINE S of(S a, S b) {
    if constexpr (std::is_integral_v<S>)
      return S(std::make_unsigned_t<S>(a) + std::make_unsigned_t<S>(b));
    else
      return a + b;
  }
};

struct Least {
  template <typename S>
  static HOPSML_INLINE S of(S a, S b) {
    return (a < b) | (a != a) ? a : b;
  }
};

struct Greatest {
  template <typename S>
  static HOPSML_INLINE S of(S a, S b) {
    return (a > b) | (a != a) ? a : b;
  }
};

template <typename S>
HOPSML_INLINE void divide_sums(S* sums, size_t count, size_t by) {
  if constexpr (std::is_same_v<S, uint8_t>) {
    for (size_t i = 0; i < count; i++) sums[i] = S(sums[i] / by);
  } else {
    const S divisor = S(by);
    for (size_t i = 0; i < count; i++) sums[i] = sums[i] / divisor;
  }
}

template <typename F, typename Op>
HOPSML_INLINE void reduce_all(const void* const* sources, size_t sources_count, void* out, size_t count, bool mean) {
  using Element = typename F::Element;
  using Sum = typename F::Sum;
  auto* target = static_cast<Element*>(out);
  if (sources_count == 2 && !mean) {
    auto *a = static_cast<const Element*>(sources[0]), *b = static_cast<const Element*>(sources[1]);
#pragma GCC ivdep
    for (size_t i = 0; i < count; i++) target[i] = F::store(Op::of(F::load(a[i]), F::load(b[i])));
    return;
  }
  alignas(64) Sum sums[kBlock];
  for (size_t begin = 0; begin < count; begin += kBlock) {
    size_t size = std::min(kBlock, count - begin);
    auto* first = static_cast<const Element*>(sources[0]) + begin;
    for (size_t i = 0; i < size; i++) sums[i] = F::load(first[i]);
    for (size_t k = 1; k < sources_count; k++) {
      auto* next = static_cast<const Element*>(sources[k]) + begin;
      for (size_t i = 0; i < size; i++) sums[i] = Op::of(sums[i], F::load(next[i]));
    }
    if (mean) divide_sums(sums, size, sources_count);
    for (size_t i = 0; i < size; i++) target[begin + i] = F::store(sums[i]);
  }
}

template <typename F>
void divide_all(void* elements, size_t count, size_t by) {
  auto* all = static_cast<typename F::Element*>(elements);
  for (size_t i = 0; i < count; i++) {
    typename F::Sum sum = F::load(all[i]);
    divide_sums(&sum, 1, by);
    all[i] = F::store(sum);
  }
}

using Kernel = void (*)(const void* const*, size_t, void*, size_t, bool);

#define HOPSML_KERNELS(name, format)                                                                               \
  HOPSML_VECTORS void add_##name(const void* const* sources, size_t n, void* out, size_t count, bool mean) {       \
    reduce_all<format, Add>(sources, n, out, count, mean);                                                         \
  }                                                                                                                \
  HOPSML_VECTORS void least_##name(const void* const* sources, size_t n, void* out, size_t count, bool) {          \
    reduce_all<format, Least>(sources, n, out, count, false);                                                      \
  }                                                                                                                \
  HOPSML_VECTORS void greatest_##name(const void* const* sources, size_t n, void* out, size_t count, bool) {       \
    reduce_all<format, Greatest>(sources, n, out, count, false);                                                   \
  }                                                                                                                \
  constexpr Kernel k_##name[] = {add_##name, add_##name, least_##name, greatest_##name};

HOPSML_KERNELS(float32, Plain<float>)
HOPSML_KERNELS(float64, Plain<double>)
HOPSML_KERNELS(float16, Half)
HOPSML_KERNELS(bfloat16, Bfloat)
HOPSML_KERNELS(int32, Plain<int32_t>)
HOPSML_KERNELS(int64, Plain<int64_t>)
HOPSML_KERNELS(uint8, Plain<uint8_t>)

constexpr void (*kDivisions[])(void*, size_t, size_t) = {
    divide_all<Plain<float>>,   divide_all<Plain<double>>,  divide_all<Half>,          divide_all<Bfloat>,
    divide_all<Plain<int32_t>>, divide_all<Plain<int64_t>>, divide_all<Plain<uint8_t>>};

/* By type, then by reduction. */
constexpr const Kernel* kKernels[] = {k_float32, k_float64, k_float16, k_bfloat16, k_int32, k_int64, k_uint8};

}  // namespace

void reduce(hopsml_type type, hopsml_reduction reduction, const void* const* sources, size_t sources_count, void* out,
            size_t count) {
  kKernels[type][reduction](sources, sources_count, out, count, reduction == HOPSML_MEAN);
}

void divide(hopsml_type type, void* elements, size_t count, size_t by) { kDivisions[type](elements, count, by); }

}  // namespace hopsml

#include "element_types.h"

namespace hopsml {
namespace {

struct ElementType {
  const char* name;
  size_t size;
};

constexpr ElementType kTypes[] = {{"float32", 4}, {"float64", 8}, {"float16", 2}, {"bfloat16", 2},
                                  {"int32", 4},   {"int64", 8},   {"uint8", 1}};

}  // namespace

bool is_type(int32_t type) { return type >= 0 && type <= HOPSML_UINT8; }

size_t element_size(hopsml_type type) { return kTypes[type].size; }

const char* type_name(hopsml_type type) { return is_type(type) ? kTypes[type].name : "of an unknown type"; }

}  // namespace hopsml

/* Entries of a loaded library's own table of imported functions, as the dynamic linker has filled them in. */
#ifndef HOPSML_SERVER_FUNCTION_TABLE_H
#define HOPSML_SERVER_FUNCTION_TABLE_H

#include <string>
#include <vector>

namespace hopsml {

struct Replacement {
  const char* name;
  void* function;
  bool is_needed;
};

/* Replaces them in every loaded library whose path begins with `path`; returns the number of those that call all
 * required ones. */
int replace_functions(const std::string& path, const std::vector<Replacement>& replacements);

}  // namespace hopsml

#endif

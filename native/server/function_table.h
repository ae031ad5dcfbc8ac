/* The functions of other libraries that a loaded library calls, as the dynamic linker has written them down for it. */
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

/* In every loaded library whose path begins with `path`; the number of those that call all that are needed. */
int replace_functions(const std::string& path, const std::vector<Replacement>& replacements);

}  // namespace hopsml

#endif

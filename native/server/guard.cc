#include "guard.h"

#include <memory>

#include "calls.h"

int32_t hopsml_guard_server(const char* libraries, const char* const* addresses, int32_t count, int32_t own,
                            const uint8_t* secret, size_t secret_size) {
  using namespace hopsml;
  auto members = std::make_unique<Members>();
  for (int32_t i = 0; i < count; i++) {
    auto endpoint = parse_endpoint(addresses[i]);
    if (!endpoint) return -1;
    members->all.push_back(*endpoint);
  }
  if (own < 0 || own >= count) return -1;
  members->own = members->all[size_t(own)];
  if (secret_size > 0)
    members->secret = std::make_unique<Secret>(std::string(reinterpret_cast<const char*>(secret), secret_size));
  put_in_force(members.release());
  return replace_functions(libraries, replacements());
}

#include "hosts.h"

#include <algorithm>
#include <map>
#include <string>

namespace hopsml {

Hosts hosts_of(const hopsml_options& options) {
  std::map<std::string, std::vector<int32_t>> by_name;
  for (int32_t rank = 0; rank < options.size; rank++) {
    const char* name = options.hosts == nullptr ? nullptr : options.hosts[rank];
    by_name[name == nullptr ? "rank " + std::to_string(rank) : std::string("host ") + name].push_back(rank);
  }
  Hosts hosts;
  for (const auto& [name, ranks] : by_name) {
    hosts.leaders.push_back(ranks.front());
    if (std::find(ranks.begin(), ranks.end(), options.rank) != ranks.end()) hosts.here = ranks;
  }
  std::sort(hosts.leaders.begin(), hosts.leaders.end());
  return hosts;
}

size_t index_of(const std::vector<int32_t>& ranks, int32_t rank) {
  return size_t(std::find(ranks.begin(), ranks.end(), rank) - ranks.begin());
}

}  // namespace hopsml

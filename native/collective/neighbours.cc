#include "neighbours.h"

namespace hopsml {

std::vector<Way> with_neighbours(size_t index, const std::vector<int32_t>& ranks, std::unique_ptr<Source> source,
                                 std::unique_ptr<Sink> sink) {
  std::vector<Way> ways(2);
  Way &to = ways[0], &from = ways[1];
  to.index = (index + 1) % ranks.size(), to.rank = ranks[to.index];
  to.source = std::move(source), to.receives = false;
  from.index = (index + ranks.size() - 1) % ranks.size(), from.rank = ranks[from.index];
  from.sink = std::move(sink), from.sends = false;
  return ways;
}

}  // namespace hopsml

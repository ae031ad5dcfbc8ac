/* How members that do not all talk to each other still learn that they called different operations.
 *
 * Whatever way an operation's data takes, each member begins by sending the call's header to the next one in rank order, and
 * reads that of the one before. Where calls differ there are two neighbours in the circle that differ; the latter of them
 * sees it, and its notice goes to all, on connections of its own.
 */
#ifndef HOPSML_COLLECTIVE_NEIGHBOURS_H
#define HOPSML_COLLECTIVE_NEIGHBOURS_H

#include "streams.h"

namespace hopsml {

/* To the next member the call's header and what `source` has, from the previous one the same into `sink`; either may be none. */
std::vector<Way> with_neighbours(size_t index, const std::vector<int32_t>& ranks, std::unique_ptr<Source> source = nullptr,
                                 std::unique_ptr<Sink> sink = nullptr);

}  // namespace hopsml

#endif

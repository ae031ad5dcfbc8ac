/* Detection of different operations by members that do not all exchange data.
 *
 * Whatever the algorithm of an operation, each member first sends the call's header to the next one in rank order, and
 * reads that of the previous one. If calls differ, two neighbours in the circle differ; the latter of them detects it,
 * and its notice is sent to all, on separate connections. */
#ifndef HOPSML_COLLECTIVE_NEIGHBOURS_H
#define HOPSML_COLLECTIVE_NEIGHBOURS_H

#include "streams.h"

namespace hopsml {

/* Sends the call's header and the data of `source` to the next member, receives the same from the previous one into
 * `sink`; either may be none. */
std::vector<Way> with_neighbours(size_t index, const std::vector<int32_t>& ranks, std::unique_ptr<Source> source = nullptr,
                                 std::unique_ptr<Sink> sink = nullptr);

}  // namespace hopsml

#endif

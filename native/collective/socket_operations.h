/* The operations over sockets: each member exchanges with each other one, directly.
 *
 * A reduction goes in two halves, as one stream: who owns a part gets what the others have of it, reduces it in rank order,
 * once, and sends the result to all; so all have the same bits, and 16-bit formats are rounded once in each half.
 */
#ifndef HOPSML_COLLECTIVE_SOCKET_OPERATIONS_H
#define HOPSML_COLLECTIVE_SOCKET_OPERATIONS_H

#include "streams.h"

namespace hopsml {

class SocketOperations {
 public:
  SocketOperations(int32_t rank, int32_t size, Streams& streams) : rank_(rank), size_(size), streams_(streams) {}

  void barrier(const Call& call);
  void all_reduce(const Call& call, const void* in, void* out);
  void all_gather(const Call& call, const void* in, void* out);
  void broadcast(const Call& call, const void* in, void* out);
  void reduce_scatter(const Call& call, const void* in, void* out);

 private:
  std::vector<Way> ways() const;
  void gather(const Call& call, const void* in, void* out, size_t bytes);
  void reduce_gathered(const Call& call, const void* in, void* out);

  int32_t rank_, size_;
  Streams& streams_;
  std::vector<uint8_t> scratch_;
};

}  // namespace hopsml

#endif

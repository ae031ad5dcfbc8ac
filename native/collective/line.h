/* An authenticated connection between two members, which sends bytes in plain form or in encrypted records. */
#ifndef HOPSML_COLLECTIVE_LINE_H
#define HOPSML_COLLECTIVE_LINE_H

#include <optional>

#include "descriptor.h"
#include "records.h"

namespace hopsml {

/* Keys of one connection, from the view of one side. */
struct Keys {
  CipherKind kind;
  Key sending, receiving;
};

struct Connection {
  Descriptor socket;
  std::optional<Keys> keys; /* none: plain bytes */
  explicit operator bool() const { return bool(socket); }
};

class Line {
 public:
  Line() = default; /* not connected */
  /* Connection with the member of this rank. */
  Line(int32_t rank, Connection connection);

  explicit operator bool() const { return bool(socket_); }
  int descriptor() const { return socket_.get(); }
  void close() { socket_.close(); }

  /* Like send_some: returns how many bytes are accepted. Accepted bytes that are not sent yet are buffered, and flush()
   * must be called. */
  ssize_t send(const iovec* parts, int count);
  bool holds() const { return writer_ && !writer_->empty(); }
  /* Sends as much of the buffer as possible; returns whether the connection is alive. */
  bool flush();

  /* Like receive_some; delivers verified bytes only. Throws Trouble if received data was changed. */
  ssize_t receive(const iovec* parts, int count);

 private:
  size_t take(const iovec* parts, int count);
  ssize_t open_next();

  int32_t rank_ = -1;
  Descriptor socket_;
  std::optional<RecordWriter> writer_;
  std::optional<RecordReader> reader_;
};

}  // namespace hopsml

#endif

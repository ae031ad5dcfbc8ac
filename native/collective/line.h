/* A connection between two members that have proved themselves, as bytes go over it: as they are, or in records. */
#ifndef HOPSML_COLLECTIVE_LINE_H
#define HOPSML_COLLECTIVE_LINE_H

#include <optional>

#include "descriptor.h"
#include "records.h"

namespace hopsml {

/* Of one connection, as one side has them. */
struct Keys {
  CipherKind kind;
  Key sending, receiving;
};

struct Connection {
  Descriptor socket;
  std::optional<Keys> keys; /* none: bytes travel as they are */
  explicit operator bool() const { return bool(socket); }
};

class Line {
 public:
  Line() = default; /* to nobody */
  /* With the member of this rank. */
  Line(int32_t rank, Connection connection);

  explicit operator bool() const { return bool(socket_); }
  int descriptor() const { return socket_.get(); }
  void close() { socket_.close(); }

  /* As send_some: how much of it is taken. What is taken and has not gone yet is held, and flush() has to be called. */
  ssize_t send(const iovec* parts, int count);
  bool holds() const { return writer_ && !writer_->empty(); }
  /* Whether the connection lives; what can go of what is held has gone then. */
  bool flush();

  /* As receive_some; it gives nothing away that may be another's. Trouble when somebody has changed what came. */
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

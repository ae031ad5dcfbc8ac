#include "line.h"

#include <algorithm>
#include <cstring>

#include "sockets.h"
#include "trouble.h"

namespace hopsml {
namespace {

Trouble forged(int32_t rank, uint64_t record) {
  std::string name = "rank " + std::to_string(rank);
  return Trouble{HOPSML_REFUSED, rank,
                 "record " + std::to_string(record) + " on the connection with " + name + " is not as " + name +
                     " encrypted it: somebody has changed, repeated, left out or moved what was under way; find out who can "
                     "write to the network between the members' machines before you begin again"};
}

}  // namespace

Line::Line(int32_t rank, Connection connection) : rank_(rank), socket_(std::move(connection.socket)) {
  if (!connection.keys) return;
  const Keys& keys = *connection.keys;
  writer_.emplace(Cipher(keys.kind, keys.sending, true));
  reader_.emplace(Cipher(keys.kind, keys.receiving, false));
}

bool Line::flush() {
  while (holds()) {
    iovec part{const_cast<uint8_t*>(writer_->data()), writer_->size()};
    ssize_t sent = send_some(socket_.get(), &part, 1);
    if (sent <= 0) return sent == 0;
    writer_->went(size_t(sent));
  }
  return true;
}

ssize_t Line::send(const iovec* parts, int count) {
  if (!writer_) return send_some(socket_.get(), parts, count);
  if (!flush()) return -1;
  if (holds()) return 0;
  size_t taken = 0;
  for (int i = 0; i < count; i++) {
    size_t of_part = std::min(parts[i].iov_len, kBytesAtOnce - taken);
    writer_->add(parts[i].iov_base, of_part);
    taken += of_part;
  }
  writer_->close();
  return flush() ? ssize_t(taken) : -1;
}

ssize_t Line::receive(const iovec* parts, int count) {
  if (!reader_) return receive_some(socket_.get(), parts, count);
  if (reader_->size() == 0) {
    ssize_t opened = open_next();
    if (opened <= 0) return opened;
  }
  return ssize_t(take(parts, count));
}

/* Returns the size of the next record; otherwise as receive_some. */
ssize_t Line::open_next() {
  while (true) {
    RecordReader::State state = reader_->open();
    if (state == RecordReader::State::kForged) throw forged(rank_, reader_->records() + 1);
    if (state == RecordReader::State::kOpen) return ssize_t(reader_->size());
    iovec room = reader_->room();
    ssize_t got = receive_some(socket_.get(), &room, 1);
    if (got <= 0) return got;
    reader_->came(size_t(got));
  }
}

/* Takes bytes of one record: the next one is taken by the next call. */
size_t Line::take(const iovec* parts, int count) {
  size_t taken = 0;
  for (int i = 0; i < count && reader_->size() > 0; i++) {
    size_t size = std::min(parts[i].iov_len, reader_->size());
    std::memcpy(parts[i].iov_base, reader_->data(), size);
    reader_->take(size);
    taken += size;
  }
  return taken;
}

}  // namespace hopsml

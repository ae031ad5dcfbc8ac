/* Encrypted records that cannot be read, changed, repeated, left out or reordered without the key; no socket.
 *
 *     size   4 bytes: of the ciphertext, from 1 to kRecordBytes
 *     ciphertext
 *     tag    16 bytes; valid for this position in the sequence of records only
 *
 * A record is so small that its reader waits only briefly for its end, before which no content is delivered. */
#ifndef HOPSML_COLLECTIVE_RECORDS_H
#define HOPSML_COLLECTIVE_RECORDS_H

#include <sys/uio.h>

#include <vector>

#include "cipher.h"

namespace hopsml {

constexpr size_t kRecordBytes = 64 << 10;
/* Plain bytes per system call: each call may wake the reader. They fit into a near cache. */
constexpr size_t kBytesAtOnce = 4 * kRecordBytes;

/* Encrypted bytes that are not sent yet. */
class RecordWriter {
 public:
  explicit RecordWriter(Cipher cipher) : cipher_(std::move(cipher)) {}

  bool empty() const { return at_ == end_; }
  /* Adds data to the present record, and to as many more as it needs. */
  void add(const void* data, size_t size);
  /* Ends the record, unless it is empty: then all of it can be sent. */
  void close();
  const uint8_t* data() const { return bytes_.data() + at_; }
  size_t size() const { return record_ - at_; }
  void went(size_t size) {
    at_ += size;
    if (at_ == end_) at_ = record_ = end_ = 0;
  }

 private:
  Cipher cipher_;
  std::vector<uint8_t> bytes_;
  size_t at_ = 0, record_ = 0, end_ = 0; /* sent bytes; begin of the present record; end */
};

/* Received bytes, and those that can be delivered. */
class RecordReader {
 public:
  enum class State { kPart, kOpen, kForged };

  explicit RecordReader(Cipher cipher);

  /* Returns where the next bytes are received, and how many at most; if no opened record is pending, never empty. */
  iovec room();
  void came(size_t size) { end_ += size; }

  /* Decrypts the next record if it is complete; the previous one must have been taken. */
  State open();
  const uint8_t* data() const { return bytes_.data() + opened_; }
  size_t size() const { return opened_end_ - opened_; } /* decrypted bytes that are not taken yet */
  void take(size_t size) { opened_ += size; }
  uint64_t records() const { return cipher_.records(); }

 private:
  Cipher cipher_;
  std::vector<uint8_t> bytes_;
  size_t begin_ = 0, end_ = 0; /* received bytes that are not decrypted yet */
  size_t opened_ = 0, opened_end_ = 0;
};

}  // namespace hopsml

#endif

/* Bytes in records that nobody without the key can read, change, repeat, leave out or put in another order; no socket.
 *
 *     size   4 bytes: of the ciphertext, from 1 to kRecordBytes
 *     ciphertext
 *     tag    16 bytes; what it says holds for this place in the row of records alone
 *
 * A record is so small that its reader need not wait long for its end, before which nothing of it is given away.
 */
#ifndef HOPSML_COLLECTIVE_RECORDS_H
#define HOPSML_COLLECTIVE_RECORDS_H

#include <sys/uio.h>

#include <vector>

#include "cipher.h"

namespace hopsml {

constexpr size_t kRecordBytes = 64 << 10;
/* Of plain text, before it goes in one call of the system: each call may wake the reader up. It fits into a near cache. */
constexpr size_t kBytesAtOnce = 4 * kRecordBytes;

/* What is encrypted and has not gone yet. */
class RecordWriter {
 public:
  explicit RecordWriter(Cipher cipher) : cipher_(std::move(cipher)) {}

  bool empty() const { return at_ == end_; }
  /* Takes it into the record under way, and into as many more as it needs. */
  void add(const void* data, size_t size);
  /* Ends the record, unless nothing is in it: then all of it can go. */
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
  size_t at_ = 0, record_ = 0, end_ = 0; /* what has gone; the record under way; all */
};

/* What comes in, and what of it can be given away. */
class RecordReader {
 public:
  enum class State { kPart, kOpen, kForged };

  explicit RecordReader(Cipher cipher);

  /* Where the next bytes go, and how many at most; asked for when nothing is open, it is never nothing. */
  iovec room();
  void came(size_t size) { end_ += size; }

  /* Decrypts the next record if it is whole; the last one has been taken. */
  State open();
  const uint8_t* data() const { return bytes_.data() + opened_; }
  size_t size() const { return opened_end_ - opened_; } /* of what is decrypted and not taken */
  void take(size_t size) { opened_ += size; }
  uint64_t records() const { return cipher_.records(); }

 private:
  Cipher cipher_;
  std::vector<uint8_t> bytes_;
  size_t begin_ = 0, end_ = 0; /* of what came and is not decrypted */
  size_t opened_ = 0, opened_end_ = 0;
};

}  // namespace hopsml

#endif

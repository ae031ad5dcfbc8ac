/* A group as this member has it. */
#ifndef HOPSML_COLLECTIVE_GROUP_H
#define HOPSML_COLLECTIVE_GROUP_H

#include <atomic>
#include <mutex>
#include <string>

#include "handshake.h"
#include "operations.h"

namespace hopsml {

class Group {
 public:
  /* Finds the other members. Trouble when that does not succeed. */
  Group(const hopsml_options& options);
  ~Group();

  const Membership& own() const { return own_; }

  hopsml_status perform(CallHeader header, const void* in, void* out);
  void end(const char* why);

  const char* problem() const;
  int32_t lost_rank() const;

  std::atomic<int> references{1};

 private:
  hopsml_status fail(Trouble trouble);
  bool forked() const { return fork_epoch() != epoch_; }

  Membership own_;
  double timeout_;
  uint32_t epoch_;
  std::unique_ptr<Watch> watch_;
  std::unique_ptr<Streams> streams_;
  std::unique_ptr<Room> room_; /* where this machine has other members, and they can share memory */
  std::unique_ptr<Operations> operations_;

  std::mutex mutex_; /* of operations, which go in a row, and of what follows */
  uint64_t calls_ = 0, completed_ = 0;
  Trouble trouble_{HOPSML_OK, -1, ""};
  std::atomic<bool> failed_{false}, ending_{false}; /* failed_: trouble_ stands, and changes no more */
};

}  // namespace hopsml

#endif

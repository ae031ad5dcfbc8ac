/* A group as this member has it: calls in a row, and what becomes of them when a member is lost. */
#ifndef HOPSML_COLLECTIVE_GROUP_H
#define HOPSML_COLLECTIVE_GROUP_H

#include <atomic>
#include <condition_variable>
#include <memory>
#include <mutex>
#include <optional>
#include <string>

#include "generation.h"

namespace hopsml {

/* A call as its caller has it: of at most kMostElements. */
struct Request {
  Call call; /* what it is; the rest of it is of an attempt */
  const void* in;
  void* out;
  bool in_of_each = false, out_of_each = false; /* whether they are `count` elements for each member */
  std::optional<uint64_t> generation{};         /* for whose members they are made; none: any */
};

constexpr uint64_t kMostElements = SIZE_MAX / 16; /* bytes of them, of any type, can be counted */

class Group {
 public:
  struct Place {
    int32_t rank, size;
    uint64_t generation;
  };

  /* Finds the other members. Trouble when that does not succeed. */
  Group(const hopsml_options& options, Descriptor listener);
  ~Group();

  Place place() const;
  bool resumable() const { return resumable_; }

  hopsml_status perform(Request& request);
  void end(const char* why);

  /* Goes on with other members. Trouble when that does not succeed. */
  void reform(const hopsml_options& options, Descriptor listener);
  bool waiting() const { return waiting_; }
  void ask_pause() { pause_asked_ = true; }
  bool pause_agreed() const { return pause_agreed_; }
  uint64_t made_in() const { return made_in_; }

  std::string problem() const;
  int32_t lost_rank() const;
  /* Whether this is a copy in a child of the process that formed it: it can do nothing, and its threads are not here. */
  bool forked() const { return fork_epoch() != epoch_; }

  std::atomic<int> references{1};

 private:
  /* Of the call that a thread is in. */
  enum class Stage {
    kLacking, /* also: of none */
    kDoubtful,
    kWhole, /* settled by a reform */
  };

  hopsml_status refusal(const Request& request) const;
  void keep_input(const Request& request);
  std::optional<hopsml_status> attempt(Request& request);
  std::optional<hopsml_status> meet(const Trouble& trouble);
  hopsml_status fail(const Trouble& trouble);
  void tell(const Trouble& trouble);
  bool is_held() const { return (reforming_ || waiting_) && !failed_ && stage_ != Stage::kWhole; }
  void set_trouble(Trouble trouble);

  Standing standing() const;
  std::shared_ptr<Interrupt> begin_reform(uint64_t generation);
  void go_on(std::shared_ptr<Generation> next, const Standing& settled, double timeout);
  void wait_for_another(const Trouble& trouble);
  std::shared_ptr<Generation> generation() const;

  const bool resumable_;
  std::atomic<bool> guest_; /* a newcomer, until the first reform has let it in */
  const uint32_t epoch_;
  Interrupt ended_;

  std::mutex row_;     /* of a resumable group's calls: one that waits for a reform stays before those behind it */
  std::mutex reforms_; /* one at a time */

  std::mutex mutex_; /* of an operation under way, and of what follows */
  std::condition_variable changed_;
  std::atomic<double> timeout_;
  uint64_t completed_ = 0, tried_in_ = 0; /* as in Standing */
  std::atomic<uint64_t> made_in_;         /* the same */
  Stage stage_ = Stage::kLacking;
  std::vector<uint8_t> kept_;       /* what of its input a call writes over, for as long as it may have to be made again */
  uint8_t* kept_of_ = nullptr;
  std::atomic<bool> reforming_{false}, waiting_{false}, ending_{false};
  std::atomic<bool> failed_{false}; /* for good: trouble_ changes no more */
  std::atomic<bool> pause_asked_{false}, pause_agreed_{false};

  mutable std::mutex view_; /* of what others look at while an operation is under way; changed with mutex_ held as well */
  std::shared_ptr<Generation> generation_;
  std::shared_ptr<Interrupt> stop_; /* of the newest reform */
  uint64_t newest_;                 /* generation that was asked for */
  Trouble trouble_{HOPSML_OK, -1, ""};
};

}  // namespace hopsml

#endif

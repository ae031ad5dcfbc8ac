/* A group on this member: serialization of calls, and their outcome when a member is lost. */
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

/* A call with its buffers: at most kMostElements. */
struct Request {
  Call call; /* description of the call; the rest is filled in per attempt */
  const void* in;
  void* out;
  bool in_of_each = false, out_of_each = false; /* whether the buffer has `count` elements for each member */
  std::optional<uint64_t> generation{};         /* generation for whose members the buffers were prepared; none: any */
};

/* so many elements of any type have a size in bytes that fits into size_t */
constexpr uint64_t kMostElements = SIZE_MAX / 16;

class Group {
 public:
  struct Place {
    int32_t rank, size;
    uint64_t generation;
  };

  /* Connects the other members. Throws Trouble on failure. */
  Group(const hopsml_options& options, Descriptor listener);
  ~Group();

  Place place() const;
  bool resumable() const { return resumable_; }

  hopsml_status perform(Request& request);
  void end(const char* why);

  /* Continues with other members. Throws Trouble on failure. */
  void reform(const hopsml_options& options, Descriptor listener);
  bool waiting() const { return waiting_; }
  void ask_pause() { pause_asked_ = true; }
  bool pause_agreed() const { return pause_agreed_; }
  uint64_t made_in() const { return made_in_; }

  std::string problem() const;
  int32_t lost_rank() const;
  /* Returns whether this is a copy in a child of the process that formed it: it can do nothing, and its threads do not
   * exist here. */
  bool forked() const { return fork_epoch() != epoch_; }

  std::atomic<int> references{1};

 private:
  /* Progress of the call that a thread is in. */
  enum class Stage {
    kLacking, /* also if there is no call */
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
  std::atomic<bool> guest_; /* a newcomer, until the first reform has admitted it */
  const uint32_t epoch_;
  Interrupt ended_;

  /* serializes calls: in a resumable group, one that waits for a reform stays before the later ones */
  std::mutex row_;
  std::mutex reforms_; /* serializes reforms */

  std::mutex mutex_; /* held during an operation, protects the members below */
  std::condition_variable changed_;
  std::atomic<double> timeout_;
  uint64_t completed_ = 0, tried_in_ = 0; /* as in Standing */
  std::atomic<uint64_t> made_in_;         /* the same */
  Stage stage_ = Stage::kLacking;
  std::vector<uint8_t> kept_;       /* copy of the input that a call overwrites, while it may have to be repeated */
  uint8_t* kept_of_ = nullptr;
  std::atomic<bool> reforming_{false}, waiting_{false}, ending_{false};
  std::atomic<bool> failed_{false}; /* permanent: trouble_ no longer changes */
  std::atomic<bool> pause_asked_{false}, pause_agreed_{false};

  mutable std::mutex view_; /* protects what other threads read during an operation; writers hold mutex_ as well */
  std::shared_ptr<Generation> generation_;
  std::shared_ptr<Interrupt> stop_; /* of the newest reform */
  uint64_t newest_;                 /* newest generation that was requested */
  Trouble trouble_{HOPSML_OK, -1, ""};
};

}  // namespace hopsml

#endif

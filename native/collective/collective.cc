/* The C interface: checks its arguments, and converts exceptions into statuses. */
#include "collective.h"

#include <cstdio>
#include <cstring>
#include <mutex>
#include <new>
#include <utility>

#include "descriptor.h"
#include "element_types.h"
#include "group.h"
#include "sockets.h"

struct hopsml_group : hopsml::Group {
  using hopsml::Group::Group;
};

namespace {

using hopsml::Operation;

constexpr size_t kShortestSecret = 16;

void say(char* error, size_t error_size, const std::string& text) {
  if (error != nullptr && error_size > 0) std::snprintf(error, error_size, "%s", text.c_str());
}

/* Returns what is wrong with these options; empty: nothing. */
std::string problem_of(const hopsml_options* options) {
  if (options == nullptr || options->struct_size < sizeof(hopsml_options)) return "options of another version of the library";
  if (options->size < 1 || options->rank < 0 || options->rank >= options->size) return "no such rank in a group of this size";
  if (options->secret == nullptr || options->secret_size < kShortestSecret) return "a secret has at least 16 bytes";
  if (options->algorithm < HOPSML_AUTO || options->algorithm > HOPSML_RING) return "no such algorithm";
  if (options->network_timeout_s != 0 && !(options->network_timeout_s >= 1)) return "the network's timeout is at least a second";
  if (options->size > 1 && options->addresses == nullptr) return "a group of more than one has addresses";
  for (int32_t rank = 0; options->size > 1 && rank < options->size; rank++)
    if (options->addresses[rank] == nullptr) return "an address of each rank is needed";
  return "";
}

bool overlap(const void* a, uint64_t a_size, const void* b, uint64_t b_size) {
  auto *x = static_cast<const char*>(a), *y = static_cast<const char*>(b);
  return a != b && x < y + b_size && y < x + a_size;
}

/* Arguments that all operations have in common. */
struct Arguments {
  uint64_t count;
  hopsml_type type;
  const char* name;
  hopsml_reduction reduction = HOPSML_SUM;
  hopsml_wire wire = HOPSML_WIRE_SAME;
  int32_t root = 0;
};

bool has_meaning(const Arguments& given) {
  if (!hopsml::is_type(given.type) || given.root < 0 || given.count > hopsml::kMostElements) return false;
  if (given.reduction < HOPSML_SUM || given.reduction > HOPSML_MAX) return false;
  if (given.wire < HOPSML_WIRE_SAME || given.wire > HOPSML_WIRE_BFLOAT16) return false;
  return given.wire == HOPSML_WIRE_SAME || given.type == HOPSML_FLOAT32;
}

struct Buffers {
  const void* in;
  void* out;
  bool in_of_each = false, out_of_each = false;
};

hopsml_status perform(hopsml_group* group, Operation operation, const Arguments& given, const Buffers& buffers,
                      std::optional<uint64_t> generation = std::nullopt) {
  if (group == nullptr || !has_meaning(given)) return HOPSML_ARGUMENT;
  if (given.count > 0 && (buffers.in == nullptr || buffers.out == nullptr)) return HOPSML_ARGUMENT;
  uint64_t bytes = given.count * hopsml::element_size(given.type);
  if (operation == hopsml::kAllReduce && overlap(buffers.in, bytes, buffers.out, bytes)) return HOPSML_ARGUMENT;
  hopsml::Request request{
      {hopsml::call_header(operation, given.count, given.type, given.reduction, given.wire, given.root, given.name)},
      buffers.in, buffers.out, buffers.in_of_each, buffers.out_of_each, generation};
  return group->perform(request);
}

/* Runs `work`, which connects members; converts exceptions, and closes the listener in any case. */
template <typename F>
hopsml_status with_members(const hopsml_options* options, std::string problem, char* error, size_t error_size, F work) {
  hopsml_status status = problem.empty() ? HOPSML_OK : HOPSML_ARGUMENT;
  try {
    bool is_readable = options != nullptr && options->struct_size >= sizeof(hopsml_options);
    hopsml::Descriptor listener(is_readable ? options->listener : -1);
    if (status == HOPSML_OK) work(std::move(listener));
  } catch (const hopsml::Trouble& trouble) {
    status = trouble.status;
    problem = trouble.text;
  } catch (const std::exception& unexpected) {
    status = HOPSML_SYSTEM;
    problem = unexpected.what();
  }
  say(error, error_size, problem);
  return status;
}

hopsml_group* current = nullptr; /* protected by fork_mutex() */

}  // namespace

#define HOPSML_PUBLIC extern "C" __attribute__((visibility("default")))

HOPSML_PUBLIC hopsml_status hopsml_form(const hopsml_options* options, hopsml_group** group, char* error,
                                        size_t error_size) {
  std::string problem = group == nullptr ? "no place for the group" : problem_of(options);
  return with_members(options, problem, error, error_size, [&](hopsml::Descriptor listener) {
    *group = nullptr;
    *group = new hopsml_group(*options, std::move(listener));
  });
}

HOPSML_PUBLIC hopsml_status hopsml_reform(hopsml_group* group, const hopsml_options* options, char* error, size_t error_size) {
  std::string problem = group == nullptr ? "no group" : problem_of(options);
  return with_members(options, problem, error, error_size,
                      [&](hopsml::Descriptor listener) { group->reform(*options, std::move(listener)); });
}

HOPSML_PUBLIC int32_t hopsml_rank(const hopsml_group* group) { return group->place().rank; }
HOPSML_PUBLIC int32_t hopsml_size(const hopsml_group* group) { return group->place().size; }
HOPSML_PUBLIC uint64_t hopsml_generation(const hopsml_group* group) { return group->place().generation; }
HOPSML_PUBLIC int32_t hopsml_resumable(const hopsml_group* group) { return group->resumable(); }
HOPSML_PUBLIC uint64_t hopsml_made_in(const hopsml_group* group) { return group->made_in(); }
HOPSML_PUBLIC int32_t hopsml_waiting(const hopsml_group* group) { return group->waiting(); }
HOPSML_PUBLIC void hopsml_ask_pause(hopsml_group* group) { group->ask_pause(); }
HOPSML_PUBLIC int32_t hopsml_pause_agreed(const hopsml_group* group) { return group->pause_agreed(); }

HOPSML_PUBLIC hopsml_status hopsml_all_reduce(hopsml_group* group, const void* in, void* out, uint64_t count,
                                              hopsml_type type, hopsml_reduction reduction, hopsml_wire wire,
                                              const char* name) {
  return perform(group, hopsml::kAllReduce, {count, type, name, reduction, wire}, {in, out});
}

HOPSML_PUBLIC hopsml_status hopsml_all_gather(hopsml_group* group, const void* in, void* out, uint64_t count,
                                              hopsml_type type, uint64_t generation, const char* name) {
  return perform(group, hopsml::kAllGather, {count, type, name}, {in, out, false, true}, generation);
}

HOPSML_PUBLIC hopsml_status hopsml_broadcast(hopsml_group* group, const void* in, void* out, uint64_t count,
                                             hopsml_type type, int32_t root, uint64_t generation, const char* name) {
  return perform(group, hopsml::kBroadcast, {count, type, name, HOPSML_SUM, HOPSML_WIRE_SAME, root}, {in, out},
                 generation);
}

HOPSML_PUBLIC hopsml_status hopsml_reduce_scatter(hopsml_group* group, const void* in, void* out, uint64_t count,
                                                  hopsml_type type, hopsml_reduction reduction, uint64_t generation,
                                                  const char* name) {
  return perform(group, hopsml::kReduceScatter, {count, type, name, reduction}, {in, out, true, false}, generation);
}

HOPSML_PUBLIC hopsml_status hopsml_barrier(hopsml_group* group, const char* name) {
  return perform(group, hopsml::kBarrier, {0, HOPSML_UINT8, name}, {nullptr, nullptr});
}

HOPSML_PUBLIC const char* hopsml_problem(const hopsml_group* group) {
  thread_local std::string text;
  text = group->problem();
  return text.c_str();
}
HOPSML_PUBLIC int32_t hopsml_lost_rank(const hopsml_group* group) { return group->lost_rank(); }

HOPSML_PUBLIC void hopsml_end(hopsml_group* group, const char* why) {
  if (group != nullptr) group->end(why);
}

HOPSML_PUBLIC void hopsml_release(hopsml_group* group) {
  /* An inherited group is not freed in a fork: threads of the parent would seem to be in it forever. */
  if (group != nullptr && group->references.fetch_sub(1) == 1 && !group->forked()) delete group;
}

HOPSML_PUBLIC void hopsml_count_into(uint64_t* counters) { hopsml::count_into(counters); }

HOPSML_PUBLIC void hopsml_set_current(hopsml_group* group) {
  if (group != nullptr) group->references.fetch_add(1);
  hopsml_group* previous;
  {
    std::lock_guard<std::mutex> lock(hopsml::fork_mutex());
    previous = std::exchange(current, group);
  }
  hopsml_release(previous);
}

HOPSML_PUBLIC hopsml_group* hopsml_current(void) {
  std::lock_guard<std::mutex> lock(hopsml::fork_mutex());
  if (current != nullptr) current->references.fetch_add(1);
  return current;
}

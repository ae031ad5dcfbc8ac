/* The C interface: checks what it is given, and lets no exception out. */
#include "collective.h"

#include <cstdio>
#include <cstring>
#include <mutex>
#include <new>
#include <utility>

#include "descriptor.h"
#include "element_types.h"
#include "group.h"

struct hopsml_group : hopsml::Group {
  using hopsml::Group::Group;
};

namespace {

using hopsml::Operation;

constexpr size_t kShortestSecret = 16;

void say(char* error, size_t error_size, const std::string& text) {
  if (error != nullptr && error_size > 0) std::snprintf(error, error_size, "%s", text.c_str());
}

/* What is wrong with these options; empty: nothing. */
std::string problem_of(const hopsml_options* options) {
  if (options == nullptr || options->struct_size < sizeof(hopsml_options)) return "options of another version of the library";
  if (options->size < 1 || options->rank < 0 || options->rank >= options->size) return "no such rank in a group of this size";
  if (options->secret == nullptr || options->secret_size < kShortestSecret) return "a secret has at least 16 bytes";
  if (options->size > 1 && options->addresses == nullptr) return "a group of more than one has addresses";
  for (int32_t rank = 0; options->size > 1 && rank < options->size; rank++)
    if (options->addresses[rank] == nullptr) return "an address of each rank is needed";
  return "";
}

bool can_hold(uint64_t count, hopsml_type type, uint64_t times) {
  return count <= SIZE_MAX / 2 / hopsml::element_size(type) / times;
}

bool overlap(const void* a, uint64_t a_size, const void* b, uint64_t b_size) {
  auto *x = static_cast<const char*>(a), *y = static_cast<const char*>(b);
  return a != b && x < y + b_size && y < x + a_size;
}

struct Buffers {
  const void* in;
  void* out;
  uint64_t in_times = 1, out_times = 1; /* how often `count` elements they are */
};

hopsml_status perform(hopsml_group* group, Operation operation, const Buffers& buffers, uint64_t count, hopsml_type type,
                      hopsml_reduction reduction, hopsml_wire wire, int32_t root, const char* name) {
  if (group == nullptr || !hopsml::is_type(type)) return HOPSML_ARGUMENT;
  if (reduction < HOPSML_SUM || reduction > HOPSML_MAX || wire < HOPSML_WIRE_SAME || wire > HOPSML_WIRE_BFLOAT16)
    return HOPSML_ARGUMENT;
  if (wire != HOPSML_WIRE_SAME && type != HOPSML_FLOAT32) return HOPSML_ARGUMENT;
  if (root < 0 || root >= group->own().size) return HOPSML_ARGUMENT;
  if (count > 0 && (buffers.in == nullptr || buffers.out == nullptr)) return HOPSML_ARGUMENT;
  if (!can_hold(count, type, buffers.in_times) || !can_hold(count, type, buffers.out_times)) return HOPSML_ARGUMENT;
  uint64_t bytes = count * hopsml::element_size(type);
  if (operation == hopsml::kAllReduce && overlap(buffers.in, bytes, buffers.out, bytes)) return HOPSML_ARGUMENT;
  return group->perform(hopsml::call_header(operation, count, type, reduction, wire, root, name), buffers.in, buffers.out);
}

hopsml_group* current = nullptr; /* under fork_mutex() */

}  // namespace

#define HOPSML_PUBLIC extern "C" __attribute__((visibility("default")))

HOPSML_PUBLIC hopsml_status hopsml_form(const hopsml_options* options, hopsml_group** group, char* error,
                                        size_t error_size) {
  std::string problem = group == nullptr ? "no place for the group" : problem_of(options);
  if (!problem.empty()) {
    if (options != nullptr && options->struct_size >= sizeof(hopsml_options)) hopsml::Descriptor(options->listener).close();
    say(error, error_size, problem);
    return HOPSML_ARGUMENT;
  }
  *group = nullptr;
  try {
    *group = new hopsml_group(*options);
    say(error, error_size, "");
    return HOPSML_OK;
  } catch (const hopsml::Trouble& trouble) {
    say(error, error_size, trouble.text);
    return trouble.status;
  } catch (const std::exception& unexpected) {
    say(error, error_size, unexpected.what());
    return HOPSML_SYSTEM;
  }
}

HOPSML_PUBLIC int32_t hopsml_rank(const hopsml_group* group) { return group->own().rank; }
HOPSML_PUBLIC int32_t hopsml_size(const hopsml_group* group) { return group->own().size; }
HOPSML_PUBLIC uint64_t hopsml_generation(const hopsml_group* group) { return group->own().generation; }

HOPSML_PUBLIC hopsml_status hopsml_all_reduce(hopsml_group* group, const void* in, void* out, uint64_t count,
                                              hopsml_type type, hopsml_reduction reduction, hopsml_wire wire,
                                              const char* name) {
  return perform(group, hopsml::kAllReduce, {in, out}, count, type, reduction, wire, 0, name);
}

HOPSML_PUBLIC hopsml_status hopsml_all_gather(hopsml_group* group, const void* in, void* out, uint64_t count,
                                              hopsml_type type, const char* name) {
  uint64_t size = group == nullptr ? 1 : uint64_t(group->own().size);
  return perform(group, hopsml::kAllGather, {in, out, 1, size}, count, type, HOPSML_SUM, HOPSML_WIRE_SAME, 0, name);
}

HOPSML_PUBLIC hopsml_status hopsml_broadcast(hopsml_group* group, const void* in, void* out, uint64_t count,
                                             hopsml_type type, int32_t root, const char* name) {
  return perform(group, hopsml::kBroadcast, {in, out}, count, type, HOPSML_SUM, HOPSML_WIRE_SAME, root, name);
}

HOPSML_PUBLIC hopsml_status hopsml_reduce_scatter(hopsml_group* group, const void* in, void* out, uint64_t count,
                                                  hopsml_type type, hopsml_reduction reduction, const char* name) {
  uint64_t size = group == nullptr ? 1 : uint64_t(group->own().size);
  return perform(group, hopsml::kReduceScatter, {in, out, size, 1}, count, type, reduction, HOPSML_WIRE_SAME, 0, name);
}

HOPSML_PUBLIC hopsml_status hopsml_barrier(hopsml_group* group, const char* name) {
  return perform(group, hopsml::kBarrier, {nullptr, nullptr}, 0, HOPSML_UINT8, HOPSML_SUM, HOPSML_WIRE_SAME, 0, name);
}

HOPSML_PUBLIC const char* hopsml_problem(const hopsml_group* group) { return group->problem(); }
HOPSML_PUBLIC int32_t hopsml_lost_rank(const hopsml_group* group) { return group->lost_rank(); }

HOPSML_PUBLIC void hopsml_end(hopsml_group* group, const char* why) {
  if (group != nullptr) group->end(why);
}

HOPSML_PUBLIC void hopsml_release(hopsml_group* group) {
  if (group != nullptr && group->references.fetch_sub(1) == 1) delete group;
}

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

#include "settlement.h"

#include <cstring>

#include "trouble.h"

namespace hopsml {
namespace {

struct Message {
  uint32_t is_new, is_doubtful;
  uint64_t completed, made_in, tried_in;
};
static_assert(sizeof(Message) == 32, "no padding");

std::string call_text(size_t rank, const std::string& what, uint64_t call) {
  return "rank " + std::to_string(rank) + " " + what + " call " + std::to_string(call);
}

[[noreturn]] void refuse(const std::vector<Standing>& members, size_t ahead, size_t behind) {
  const Standing &first = members[ahead], &second = members[behind];
  std::string other = second.is_doubtful ? call_text(behind, "was amid", second.completed + 1)
                                         : call_text(behind, "has completed", second.completed);
  throw Trouble{HOPSML_MISMATCH, int32_t(behind),
                "members cannot go on together: " + call_text(ahead, "has completed", first.completed) + ", in generation " +
                    std::to_string(first.made_in) + "; " + other + ", in generation " +
                    std::to_string(second.is_doubtful ? second.tried_in : second.made_in)};
}

}  // namespace

std::string encode(const Standing& standing) {
  Message message{standing.is_new, standing.is_doubtful, standing.completed, standing.made_in, standing.tried_in};
  return std::string(reinterpret_cast<const char*>(&message), sizeof message);
}

Standing decode_standing(const std::string& bytes) {
  Message message;
  if (bytes.size() != sizeof message) throw Trouble{HOPSML_SYSTEM, -1, "a member said what has no meaning"};
  std::memcpy(&message, bytes.data(), sizeof message);
  return {message.is_new != 0, message.is_doubtful != 0, message.completed, message.made_in, message.tried_in};
}

Standing settle(const std::vector<Standing>& members, uint64_t generation) {
  const Standing* first = nullptr; /* of those that have completed most */
  for (const Standing& one : members)
    if (!one.is_new && (first == nullptr || one.completed > first->completed)) first = &one;
  Standing all{false, false, 0, generation, 0};
  if (first == nullptr) return all;
  all.completed = first->completed, all.made_in = first->made_in;
  bool is_next_whole = true; /* no member lacks a part of the next call's result */
  for (size_t i = 0; i < members.size(); i++) {
    const Standing& one = members[i];
    if (one.is_new) continue;
    bool is_level = one.completed == all.completed && one.made_in == all.made_in;
    bool has_result = one.is_doubtful && one.completed + 1 == all.completed && one.tried_in == all.made_in;
    if (!is_level && !has_result) refuse(members, size_t(first - members.data()), i);
    is_next_whole &= is_level && one.is_doubtful && one.tried_in == first->tried_in;
  }
  if (is_next_whole) all.completed++, all.made_in = first->tried_in;
  return all;
}

}  // namespace hopsml

/* Groups in operation, for the sanitizers: members as threads of one process, then as processes; all transports; every
 * operation, an end during operations, a fork; and groups that continue without a member, during operations. Exits with
 * 0, or prints the failure. */
#include <netinet/in.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <functional>
#include <string>
#include <thread>
#include <vector>

#include "../collective/collective.h"

namespace {

constexpr uint64_t kCounts[] = {0, 3, 5000, 700001};
const uint8_t kSecret[16] = {1, 2, 3};

void check(bool holds, const char* what) {
  if (holds) return;
  std::fprintf(stderr, "wrong: %s\n", what);
  _exit(1);
}

/* Listeners of all members, made before the members. */
struct Meeting {
  std::vector<int> listeners;
  std::vector<std::string> addresses;

  explicit Meeting(int size) {
    for (int rank = 0; rank < size; rank++) {
      int listener = socket(AF_INET, SOCK_STREAM, 0);
      sockaddr_in address{};
      socklen_t length = sizeof address;
      address.sin_family = AF_INET;
      address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
      check(bind(listener, reinterpret_cast<sockaddr*>(&address), length) == 0 && listen(listener, 16) == 0, "a listener");
      getsockname(listener, reinterpret_cast<sockaddr*>(&address), &length);
      listeners.push_back(listener);
      addresses.push_back("127.0.0.1:" + std::to_string(ntohs(address.sin_port)));
    }
  }
};

/* Names of the machines that members get. */
enum Machines { kUnknown, kOne, kTwo };

/* Forms a group, or lets this one continue. */
hopsml_group* form(const Meeting& meeting, int rank, Machines machines, hopsml_algorithm algorithm, bool resumable = false,
                   hopsml_group* group = nullptr, bool encrypted = false) {
  std::vector<const char*> addresses, hosts(meeting.addresses.size(), "here");
  if (machines == kTwo) hosts[0] = "there";
  for (const std::string& address : meeting.addresses) addresses.push_back(address.c_str());
  hopsml_options options{};
  options.struct_size = sizeof options;
  options.rank = rank, options.size = int32_t(addresses.size());
  options.addresses = addresses.data();
  options.hosts = machines == kUnknown ? nullptr : hosts.data();
  options.listener = meeting.listeners[size_t(rank)];
  options.secret = kSecret, options.secret_size = sizeof kSecret;
  options.form_timeout_s = 60, options.timeout_s = 60;
  options.resumable = resumable;
  options.generation = group == nullptr ? 0 : hopsml_generation(group) + 1;
  options.algorithm = algorithm;
  options.encryption = encrypted;
  char error[512];
  hopsml_status status = group == nullptr ? hopsml_form(&options, &group, error, sizeof error)
                                          : hopsml_reform(group, &options, error, sizeof error);
  if (status != HOPSML_OK) std::fprintf(stderr, "%s\n", error);
  check(status == HOPSML_OK, "a group forms");
  return group;
}

void work(hopsml_group* group) {
  auto size = uint64_t(hopsml_size(group)), rank = uint64_t(hopsml_rank(group)), now = hopsml_generation(group);
  for (uint64_t count : kCounts) {
    std::vector<float> own(count, float(rank + 1)), result(count), all(size * count, float(rank + 1));
    float sum = float(size * (size + 1)) / 2;
    for (hopsml_wire wire : {HOPSML_WIRE_SAME, HOPSML_WIRE_FLOAT16, HOPSML_WIRE_BFLOAT16}) {
      check(hopsml_all_reduce(group, own.data(), result.data(), count, HOPSML_FLOAT32, HOPSML_SUM, wire, "x") == HOPSML_OK &&
                result == std::vector<float>(count, sum),
            "all_reduce");
    }
    check(hopsml_reduce_scatter(group, all.data(), result.data(), count, HOPSML_FLOAT32, HOPSML_MEAN, now, "x") ==
                  HOPSML_OK &&
              result == std::vector<float>(count, sum / float(size)),
          "reduce_scatter");
    check(hopsml_all_gather(group, own.data(), all.data(), count, HOPSML_FLOAT32, now, "x") == HOPSML_OK, "all_gather");
    for (uint64_t i = 0; i < all.size(); i++) check(all[i] == float(i / count + 1), "all_gather");
    check(hopsml_broadcast(group, own.data(), result.data(), count, HOPSML_FLOAT32, 1, now, "x") == HOPSML_OK &&
              result == std::vector<float>(count, 2),
          "broadcast");
    check(hopsml_barrier(group, "x") == HOPSML_OK, "barrier");
  }
}

/* Runs operations on a separate thread, until the group is ended. */
void work_until_ended(hopsml_group* group) {
  std::vector<float> values(100000, 1);
  hopsml_status status = HOPSML_OK;
  while (status == HOPSML_OK)
    status = hopsml_all_reduce(group, values.data(), values.data(), values.size(), HOPSML_FLOAT32, HOPSML_MEAN,
                               HOPSML_WIRE_SAME, "");
  check(status == HOPSML_ENDED || status == HOPSML_PEER_LOST, "an end ends operations");
}

/* A child of a process with groups cannot use them, and can leave them. */
void fork_and_leave(hopsml_group* group) {
  pid_t child = fork();
  if (child == 0) {
    bool refused = hopsml_barrier(group, "") == HOPSML_ENDED;
    hopsml_end(group, "a fork");
    _exit(refused ? 0 : 1);
  }
  int status = 0;
  waitpid(child, &status, 0);
  check(status == 0, "a fork is no member");
}

void as_threads(int size, Machines machines, hopsml_algorithm algorithm, bool encrypted = false) {
  Meeting meeting(size);
  std::vector<std::thread> threads;
  for (int rank = 0; rank < size; rank++)
    threads.emplace_back([&, rank] {
      hopsml_group* group = form(meeting, rank, machines, algorithm, false, nullptr, encrypted);
      hopsml_set_current(group);
      work(group);
      if (rank == 0) fork_and_leave(group);
      check(hopsml_barrier(group, "") == HOPSML_OK, "after the fork");
      std::thread other([&] { work_until_ended(group); });
      if (rank == size - 1) hopsml_end(group, "enough");
      other.join();
      check(hopsml_problem(group)[0] != 0, "a problem has words");
      hopsml_release(group);
    });
  for (std::thread& thread : threads) thread.join();
  hopsml_set_current(nullptr);
}

/* Runs operations in place and not, until the group ends: each result is that of some of the members. */
void work_through_losses(hopsml_group* group, int size) {
  std::vector<float> one(70000, 1), values;
  while (true) {
    values = one;
    hopsml_status status = hopsml_all_reduce(group, values.data(), values.data(), values.size(), HOPSML_FLOAT32, HOPSML_SUM,
                                             HOPSML_WIRE_SAME, "");
    if (status == HOPSML_OK) status = hopsml_barrier(group, "");
    if (status != HOPSML_OK) return check(status == HOPSML_ENDED, "a loss is no end");
    check(values[0] >= 1 && values[0] <= float(size) && values == std::vector<float>(values.size(), values[0]), "one result");
  }
}

/* One member leaves during the calls; the others continue without it, and then repeatedly as if one of them were
 * frozen. */
void as_survivors(Machines machines, bool encrypted = false) {
  constexpr int kSize = 4, kReforms = 12;
  Meeting first(kSize);
  std::vector<Meeting> later(kReforms, Meeting(0));
  for (Meeting& one : later) one = Meeting(kSize - 1);
  std::vector<std::thread> threads;
  for (int rank = 0; rank < kSize; rank++)
    threads.emplace_back([&, rank] {
      hopsml_group* group = form(first, rank, machines, HOPSML_AUTO, true, nullptr, encrypted);
      std::thread caller([&] { work_through_losses(group, kSize); });
      if (rank < kSize - 1) {
        while (!hopsml_waiting(group)) std::this_thread::yield();
        check(hopsml_lost_rank(group) == kSize - 1 && hopsml_problem(group)[0] != 0, "who was lost is known");
        for (const Meeting& one : later) {
          form(one, rank, machines, HOPSML_AUTO, true, group, encrypted);
          hopsml_ask_pause(group);
          while (!hopsml_pause_agreed(group)) std::this_thread::yield();
        }
      }
      hopsml_end(group, "enough");
      caller.join();
      hopsml_release(group);
    });
  for (std::thread& thread : threads) thread.join();
}

void as_processes(int size, Machines machines, hopsml_algorithm algorithm) {
  Meeting meeting(size);
  std::vector<pid_t> children;
  for (int rank = 0; rank < size; rank++) {
    children.push_back(fork());
    if (children.back() != 0) continue;
    hopsml_group* group = form(meeting, rank, machines, algorithm);
    work(group);
    hopsml_release(group);
    _exit(0);
  }
  for (pid_t child : children) {
    int status = 0;
    waitpid(child, &status, 0);
    check(status == 0, "a process");
  }
  for (int listener : meeting.listeners) close(listener);
}

}  // namespace

int main(int count, char**) {
  if (count > 1) { /* a little of each transport, for emulated processors */
    for (Machines machines : {kUnknown, kOne}) as_processes(2, machines, HOPSML_AUTO);
    return 0;
  }
  for (Machines machines : {kUnknown, kOne, kTwo}) {
    for (int size : {2, 3}) as_processes(size, machines, HOPSML_AUTO);
    for (int size : {2, 4}) as_threads(size, machines, HOPSML_AUTO);
    as_survivors(machines);
  }
  for (hopsml_algorithm algorithm : {HOPSML_PAIRWISE, HOPSML_RING})
    for (int size : {2, 5}) as_threads(size, kUnknown, algorithm);
  for (hopsml_algorithm algorithm : {HOPSML_DIRECT, HOPSML_PAIRWISE, HOPSML_RING}) as_threads(3, kTwo, algorithm, true);
  as_survivors(kUnknown, true);
}

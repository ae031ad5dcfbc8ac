#include "streams.h"

#include "clock.h"
#include "sockets.h"

namespace hopsml {
namespace {

constexpr int kTurnsBetweenLooks = 16;
constexpr double kSecondsToLearnWhy = 0.1; /* a member's final notice may arrive just after the end of its data */

/* Returns whether the connection has to finish an earlier exchange first. */
bool is_behind(const std::vector<Way>& ways, const Way& way, bool (Way::*goes_on)() const) {
  if (!way.queues) return false;
  for (const Way* before = ways.data(); before != &way; before++)
    if (before->rank == way.rank && (before->*goes_on)()) return true;
  return false;
}

}  // namespace

Streams::Streams(int32_t rank, std::vector<Line> lines, Watch& watch)
    : rank_(rank), lines_(std::move(lines)), watch_(watch) {}

void Streams::close() {
  for (Line& line : lines_) line.close();
}

void Streams::lost(int32_t rank, const Call& call) {
  Call shorter = call;
  shorter.deadline = kNever;
  for (double until = now() + kSecondsToLearnWhy; now() < until;) {
    pollfd event{watch_.descriptor(), POLLIN, 0};
    if (poll(&event, 1, milliseconds_until(until)) > 0) watch_.look(shorter);
  }
  throw Trouble{HOPSML_PEER_LOST, rank, "rank " + std::to_string(rank) + " was lost: its connection broke"};
}

bool Streams::send(Way& way, const Call& call) {
  iovec parts[2];
  int count = 0;
  size_t header = sizeof(CallHeader) - way.header_sent;
  if (header > 0)
    parts[count++] = {const_cast<char*>(reinterpret_cast<const char*>(&call.header)) + way.header_sent, header};
  Span next = way.source ? way.source->next() : Span{};
  if (next.size > 0) parts[count++] = {next.data, next.size};
  if (count == 0) return false;
  ssize_t sent = line(way).send(parts, count);
  if (sent < 0) lost(way.rank, call);
  size_t of_header = std::min(header, size_t(sent));
  way.header_sent += of_header;
  if (size_t(sent) > of_header) way.source->went(size_t(sent) - of_header);
  return sent > 0;
}

bool Streams::receive(Way& way, const Call& call) {
  iovec parts[2];
  int count = 0;
  size_t header = sizeof(CallHeader) - way.header_received;
  if (header > 0) parts[count++] = {reinterpret_cast<char*>(&way.received) + way.header_received, header};
  Span room = way.sink ? way.sink->room() : Span{};
  if (room.size > 0) parts[count++] = {room.data, room.size};
  if (count == 0) return false;
  ssize_t got = line(way).receive(parts, count);
  if (got < 0) lost(way.rank, call);
  size_t of_header = std::min(header, size_t(got));
  way.header_received += of_header;
  if (of_header > 0 && of_header == header) check_same(call.header, rank_, way.received, way.rank);
  if (size_t(got) > of_header) way.sink->came(size_t(got) - of_header);
  return got > 0;
}

void Streams::run(std::vector<Way>& ways, const Call& call) {
  for (int turn = 1;; turn++) {
    bool is_over = true, moved = false;
    for (Way& way : ways) {
      if (!line(way).flush()) lost(way.rank, call);
      if (way.sending() && !is_behind(ways, way, &Way::sending)) moved |= send(way, call);
      if (way.receiving() && !is_behind(ways, way, &Way::receiving)) moved |= receive(way, call);
      is_over &= !way.sending() && !way.receiving() && !line(way).holds();
    }
    if (is_over) return;
    if (!moved) wait(ways, call);
    if (turn % kTurnsBetweenLooks == 0) {
      watch_.look(call);
      watch_.patience(call, ways.front().rank);
    }
  }
}

void Streams::wait(std::vector<Way>& ways, const Call& call) {
  events_.clear();
  int32_t awaited = ways.front().rank;
  for (Way& way : ways) {
    bool reads = way.receiving() && (way.header_received < sizeof(CallHeader) || way.sink->room().size > 0);
    bool has_more = way.sending() && (way.header_sent < sizeof(CallHeader) || way.source->next().size > 0);
    bool writes = has_more || line(way).holds();
    if (way.receiving()) awaited = way.rank;
    if (reads || writes)
      events_.push_back({line(way).descriptor(), short((reads ? POLLIN : 0) | (writes ? POLLOUT : 0)), 0});
  }
  watch_.wait(events_, call, awaited);
}

}  // namespace hopsml

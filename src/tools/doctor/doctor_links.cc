// What lies between the hosts of a job: clocks and bandwidth.
#include <algorithm>
#include <array>
#include <chrono>
#include <cstdint>
#include <cstring>
#include <span>
#include <vector>

#include "lockstep/base/data_type.h"
#include "lockstep/comm/objects.h"
#include "src/tools/doctor/doctor_job.h"

namespace lockstep {
namespace {

using DoctorClock = std::chrono::steady_clock;

constexpr std::chrono::seconds kLinkTimeout{60};
constexpr int kRoundTrips = 16;
// At 1 Gbit/s 0.13 s.
constexpr std::size_t kLinkBytes = std::size_t{16} << 20;
constexpr int kProbeTag = 0;

double seconds_since(DoctorClock::time_point start) {
  return std::chrono::duration<double>(DoctorClock::now() - start).count();
}

// Seconds since 1970.
double wall_clock() {
  return std::chrono::duration<double>(
             std::chrono::system_clock::now().time_since_epoch())
      .count();
}

void send_numbers(ProcessGroup& group, std::span<double> numbers, int to) {
  group.send(view(numbers), to, kProbeTag, {.timeout = kLinkTimeout});
}

void receive_numbers(ProcessGroup& group, std::span<double> numbers, int from) {
  group.recv(view(numbers), from, kProbeTag, {.timeout = kLinkTimeout});
}

// The peer of measure_offset().
void answer_with_time(ProcessGroup& group, int peer) {
  std::array<double, 1> number{};
  for (int trip = 0; trip < kRoundTrips; ++trip) {
    receive_numbers(group, number, peer);
    number[0] = wall_clock();
    send_numbers(group, number, peer);
  }
}

// As NTP does: the answer of the fastest trip has the least uncertain time.
ClockOffset measure_offset(ProcessGroup& group, int peer) {
  ClockOffset best{.uncertainty = kLinkTimeout.count()};
  for (int trip = 0; trip < kRoundTrips; ++trip) {
    std::array<double, 1> number{};
    const auto start = DoctorClock::now();
    const double before = wall_clock();
    send_numbers(group, number, peer);
    receive_numbers(group, number, peer);
    const double half = seconds_since(start) / 2;
    if (half < best.uncertainty)
      best = {.seconds = number[0] - (before + half), .uncertainty = half};
  }
  return best;
}

// The peer of measure_link().
void answer_to_bytes(ProcessGroup& group, int peer,
                     std::span<std::uint8_t> block) {
  std::array<double, 1> number{};
  for (int trip = 0; trip < kRoundTrips; ++trip) {
    receive_numbers(group, number, peer);
    send_numbers(group, number, peer);
  }
  for (int pass = 0; pass < 2; ++pass) {
    group.recv(view(block), peer, kProbeTag, {.timeout = kLinkTimeout});
    send_numbers(group, number, peer);
  }
}

// The second pass counts: the first opens connections and touches memory.
LinkSpeed measure_link(ProcessGroup& group, int peer,
                       std::span<std::uint8_t> block) {
  LinkSpeed speed{.round_trip_seconds = kLinkTimeout.count()};
  std::array<double, 1> number{};
  for (int trip = 0; trip < kRoundTrips; ++trip) {
    const auto start = DoctorClock::now();
    send_numbers(group, number, peer);
    receive_numbers(group, number, peer);
    speed.round_trip_seconds =
        std::min(speed.round_trip_seconds, seconds_since(start));
  }
  for (int pass = 0; pass < 2; ++pass) {
    const auto start = DoctorClock::now();
    group.send(view(block), peer, kProbeTag, {.timeout = kLinkTimeout});
    receive_numbers(group, number, peer);
    speed.bytes_per_second =
        static_cast<double>(block.size()) / seconds_since(start);
  }
  return speed;
}

// All pairs of a few hosts; of many, each host and the next two.
bool is_measured(std::size_t from, std::size_t to, std::size_t hosts) {
  constexpr std::size_t kFewHosts = 8;
  return from != to && (hosts <= kFewHosts || (to + hosts - from) % hosts <= 2);
}

}  // namespace

std::vector<ClockOffset> measure_clocks(ProcessGroup& group,
                                        std::span<const int> leaders) {
  std::vector<ClockOffset> offsets;
  for (std::size_t host = 1; host < leaders.size(); ++host) {
    if (group.rank() == leaders[host]) answer_with_time(group, leaders[0]);
    if (group.rank() != leaders[0]) continue;
    offsets.push_back(measure_offset(group, leaders[host]));
    offsets.back().host = host;
  }
  return offsets;
}

// One pair after the other, since two would share links.
std::vector<LinkSpeed> measure_links(ProcessGroup& group,
                                     std::span<const int> leaders) {
  std::vector<std::uint8_t> block;
  std::vector<LinkSpeed> own;
  for (std::size_t from = 0; from < leaders.size(); ++from)
    for (std::size_t to = 0; to < leaders.size(); ++to) {
      if (!is_measured(from, to, leaders.size())) continue;
      block.resize(kLinkBytes);
      if (group.rank() == leaders[from]) {
        own.push_back(measure_link(group, leaders[to], block));
        own.back().from = from;
        own.back().to = to;
      } else if (group.rank() == leaders[to]) {
        answer_to_bytes(group, leaders[from], block);
      }
      group.barrier({.timeout = kLinkTimeout}).wait();
    }
  std::vector<LinkSpeed> all;
  const auto bytes = std::as_bytes(std::span(own));
  for (const Bytes& part :
       gather_bytes(group, bytes, 0, {.timeout = kLinkTimeout})) {
    const std::size_t before = all.size();
    all.resize(before + part.size() / sizeof(LinkSpeed));
    if (!part.empty())
      std::memcpy(all.data() + before, part.data(), part.size());
  }
  return all;
}

}  // namespace lockstep

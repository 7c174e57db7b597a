// What lies between the hosts of a job: clocks and bandwidth.
#include <algorithm>
#include <array>
#include <chrono>
#include <cstdint>
#include <span>
#include <vector>

#include "apps/doctor/doctor_job.h"
#include "lockstep/base/buffer.h"
#include "lockstep/base/deadline.h"

namespace lockstep {
namespace {

using DoctorClock = std::chrono::steady_clock;

// How long the two ranks of a pair may measure. The other ranks wait longer, so
// that those two report the error.
constexpr std::chrono::seconds kPairTime{60};
constexpr std::chrono::seconds kMargin{30};
constexpr int kRoundTrips = 16;
constexpr int kProbeTag = 0;
// The largest at 1 Gbit/s: 0.13 s. It comes twice, since the first time opens
// connections and touches memory.
constexpr std::array<std::size_t, 4> kBlockBytes{
    std::size_t{64} << 10, std::size_t{1} << 20, std::size_t{16} << 20,
    std::size_t{16} << 20};
// Over a slow link, the pass that takes longer is the last.
constexpr double kLongPassSeconds = 0.2;

double seconds_since(DoctorClock::time_point start) {
  return std::chrono::duration<double>(DoctorClock::now() - start).count();
}

// Seconds since 1970.
double wall_clock() {
  return std::chrono::duration<double>(
             std::chrono::system_clock::now().time_since_epoch())
      .count();
}

// The other rank of a pair, until the pair's deadline.
class Peer {
 public:
  Peer(ProcessGroup& group, int rank) : group_(group), rank_(rank) {}

  void send(const Buffer& buffer) {
    group_.send(buffer, rank_, kProbeTag, {.timeout = remaining()});
  }
  void send_number(double number) {
    send(view(std::span<const double>(&number, 1)));
  }
  void receive(const Buffer& buffer) {
    group_.recv(buffer, rank_, kProbeTag, {.timeout = remaining()});
  }
  double receive_number() {
    double number = 0;
    receive(view(std::span<double>(&number, 1)));
    return number;
  }
  // Waits until the other rank has measured `pairs` pairs before this one.
  double receive_first_number(std::size_t pairs) {
    deadline_ = Deadline(kPairTime * (pairs + 1) + kMargin);
    const double number = receive_number();
    deadline_ = Deadline(kPairTime);
    return number;
  }

 private:
  std::chrono::nanoseconds remaining() const {
    constexpr std::chrono::nanoseconds kLeast = std::chrono::milliseconds(1);
    return std::max(kLeast,
                    std::chrono::duration_cast<std::chrono::nanoseconds>(
                        deadline_.remaining()));
  }

  ProcessGroup& group_;
  int rank_;
  Deadline deadline_{kPairTime};
};

// The peer of measure_offset().
void answer_with_time(ProcessGroup& group, int rank, std::size_t pairs_before) {
  Peer peer(group, rank);
  for (int trip = 0; trip < kRoundTrips; ++trip) {
    if (trip == 0)
      peer.receive_first_number(pairs_before);
    else
      peer.receive_number();
    peer.send_number(wall_clock());
  }
}

// As NTP does: the answer of the fastest trip has the least uncertain time.
ClockOffset measure_offset(ProcessGroup& group, int rank) {
  Peer peer(group, rank);
  ClockOffset best{.uncertainty = kPairTime.count()};
  for (int trip = 0; trip < kRoundTrips; ++trip) {
    const auto start = DoctorClock::now();
    const double before = wall_clock();
    peer.send_number(0);
    const double time = peer.receive_number();
    const double half = seconds_since(start) / 2;
    if (half < best.uncertainty)
      best = {.seconds = time - (before + half), .uncertainty = half};
  }
  return best;
}

// The peer of measure_link().
void answer_to_bytes(ProcessGroup& group, int rank) {
  Peer peer(group, rank);
  for (int trip = 0; trip < kRoundTrips; ++trip)
    peer.send_number(peer.receive_number());
  std::vector<std::uint8_t> block;
  while (const auto bytes = static_cast<std::size_t>(peer.receive_number())) {
    block.resize(bytes);
    peer.send_number(0);  // ready
    peer.receive(view(block));
    peer.send_number(0);
  }
}

// The last pass counts.
double measure_bandwidth(Peer& peer) {
  std::vector<std::uint8_t> block;
  double seconds = 0;
  for (const std::size_t bytes : kBlockBytes) {
    block.resize(bytes);
    peer.send_number(static_cast<double>(bytes));
    peer.receive_number();
    const auto start = DoctorClock::now();
    peer.send(view(block));
    peer.receive_number();
    seconds = seconds_since(start);
    if (seconds > kLongPassSeconds) break;
  }
  peer.send_number(0);
  return static_cast<double>(block.size()) / seconds;
}

void measure_link(ProcessGroup& group, int rank, LinkSpeed& speed) {
  Peer peer(group, rank);
  speed.round_trip_seconds = kPairTime.count();
  for (int trip = 0; trip < kRoundTrips; ++trip) {
    const auto start = DoctorClock::now();
    peer.send_number(0);
    peer.receive_number();
    speed.round_trip_seconds =
        std::min(speed.round_trip_seconds, seconds_since(start));
  }
  speed.bytes_per_second = measure_bandwidth(peer);
}

// All pairs of a few hosts; of many, each host and the next two.
bool is_measured(std::size_t from, std::size_t to, std::size_t hosts) {
  constexpr std::size_t kFewHosts = 8;
  return from != to && (hosts <= kFewHosts || (to + hosts - from) % hosts <= 2);
}

// All ranks of the group learn the result, and so wait for their turn.
LinkSpeed measure_pair(ProcessGroup& group, int from, int to) {
  LinkSpeed speed;
  std::chrono::nanoseconds timeout = kMargin;
  if (group.rank() == from)
    measure_link(group, to, speed);
  else if (group.rank() == to)
    answer_to_bytes(group, from);
  else
    timeout += kPairTime + kMargin;
  std::array<double, 2> numbers{speed.bytes_per_second,
                                speed.round_trip_seconds};
  group.broadcast(view(std::span<double>(numbers)), from, {.timeout = timeout})
      .wait();
  return {.bytes_per_second = numbers[0], .round_trip_seconds = numbers[1]};
}

}  // namespace

void measure_clocks(ProcessGroup& group, std::span<const int> leaders,
                    std::vector<ClockOffset>& offsets) {
  for (std::size_t host = 1; host < leaders.size(); ++host) {
    if (group.rank() == leaders[host])
      answer_with_time(group, leaders[0], host - 1);
    if (group.rank() != leaders[0]) continue;
    offsets.push_back(measure_offset(group, leaders[host]));
    offsets.back().host = host;
  }
  // Until rank 0 has measured all hosts.
  group
      .barrier(
          {.timeout = kPairTime * static_cast<int>(leaders.size()) + kMargin})
      .wait();
}

// One pair after the other, since two would share links.
void measure_links(ProcessGroup& group, std::span<const int> leaders,
                   std::vector<LinkSpeed>& links) {
  for (std::size_t from = 0; from < leaders.size(); ++from)
    for (std::size_t to = 0; to < leaders.size(); ++to) {
      if (!is_measured(from, to, leaders.size())) continue;
      links.push_back({.from = from, .to = to});
      const LinkSpeed speed = measure_pair(group, leaders[from], leaders[to]);
      links.back().bytes_per_second = speed.bytes_per_second;
      links.back().round_trip_seconds = speed.round_trip_seconds;
    }
}

}  // namespace lockstep

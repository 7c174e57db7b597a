#include "lockstep/comm/shm/departures.h"

#include <fmt/format.h>
#include <poll.h>

#include <algorithm>
#include <chrono>
#include <cstring>

#include "lockstep/base/error.h"
#include "lockstep/net/process_handle.h"
#include "lockstep/net/wait.h"
#include "lockstep/store/host_address.h"

namespace lockstep {

void Departures::depart(Presence presence, const Departure& why) noexcept {
  RankArea& area = control_.rank(identity_.rank);
  if (area.presence.load() != Presence::kPresent) return;
  area.culprit = why.culprit;
  area.disagreed = why.disagreed ? 1 : 0;
  const std::size_t length =
      std::min(why.reason.size(), sizeof area.reason - 1);
  std::memcpy(area.reason, why.reason.data(), length);
  area.presence.store(presence);
}

bool Departures::has_ended(int rank) const {
  return has_exited((*processes_)[static_cast<std::size_t>(rank)]);
}

std::string Departures::end_of(int rank) const {
  const auto status =
      exit_status_of((*processes_)[static_cast<std::size_t>(rank)]);
  return "its process " + (status ? describe(*status) : "ended");
}

// A program that returns from main() leaves its groups and ends a moment later:
// its exit status says more than that it left.
std::string Departures::reason_of(const Departure& departure) const {
  const auto rank = static_cast<std::size_t>(departure.culprit);
  constexpr std::chrono::milliseconds kOnItsWayOut{50};
  if (departure.culprit == identity_.rank ||
      control_.rank(departure.culprit).presence.load() != Presence::kLeft)
    return departure.reason;
  wait_for((*processes_)[rank].get(), POLLIN, kOnItsWayOut);
  if (!has_ended(departure.culprit)) return departure.reason;
  return fmt::format("{}, and {}", departure.reason, end_of(departure.culprit));
}

bool Departures::has_left(int rank) const {
  return control_.rank(rank).presence.load() != Presence::kPresent;
}

// Whether the departure of `rank`, which left in good order, ends the wait.
bool Departures::is_missed(int rank, const std::vector<int>& needed,
                           Need need) const {
  if (needed.empty()) return true;
  if (need == Need::kEach)
    return std::ranges::find(needed, rank) != needed.end();
  return std::ranges::all_of(needed, [this](int r) { return has_left(r); });
}

std::optional<Departure> Departures::find(const std::vector<int>& needed,
                                          Need need) const {
  std::optional<Departure> found;
  for (int r = 0; r < identity_.size; ++r) {
    if (r == identity_.rank) continue;
    const RankArea& area = control_.rank(r);
    const Presence presence = area.presence.load();
    // A process may announce why it leaves and end between the two checks.
    if (presence == Presence::kPresent && has_ended(r) &&
        area.presence.load() == Presence::kPresent)
      return Departure{r, end_of(r)};
    const Presence now = area.presence.load();
    if (now == Presence::kPresent || found) continue;
    if (now == Presence::kLeft && !is_missed(r, needed, need)) continue;
    found = {area.culprit, area.reason, area.disagreed != 0};
  }
  return found;
}

std::exception_ptr Departures::error_for(const std::string& call,
                                         const Departure& departure) const {
  if (departure.disagreed)
    return std::make_exception_ptr(Mismatch(departure.reason));
  return std::make_exception_ptr(PeerFailure(
      departure.culprit,
      fmt::format(
          "{} failed on rank {} of {} (group \"{}\"): {} on {} is gone: "
          "{}\n"
          "  next:    read rank {}'s log; the group is unusable, make "
          "a new one",
          call, identity_.rank, identity_.size, identity_.name,
          identity_.describe(departure.culprit), own_host_name(),
          reason_of(departure), identity_.rank_in_job(departure.culprit))));
}

}  // namespace lockstep

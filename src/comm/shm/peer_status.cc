#include "src/comm/shm/peer_status.h"

#include <fmt/format.h>
#include <poll.h>

#include <algorithm>
#include <chrono>
#include <span>

#include "lockstep/base/error.h"
#include "src/base/printable.h"
#include "src/net/process_handle.h"
#include "src/net/wait.h"
#include "src/store/host_address.h"

namespace lockstep {

PeerProcesses::PeerProcesses(std::vector<FileDescriptor> handles) {
  const MutexLock lock(mutex_);
  for (std::size_t rank = 0; rank < handles.size(); ++rank) {
    const auto handle = shared_handle(std::move(handles[rank]));
    // Ranks that are threads of one process have one handle.
    const bool is_new = std::ranges::find(handles_, handle) == handles_.end();
    handles_.push_back(handle);
    if (is_new) epoll_.add(handle->get(), EPOLLIN, rank);
  }
}

bool PeerProcesses::any_has_ended() {
  const MutexLock lock(mutex_);
  return !epoll_.wait(Deadline(std::chrono::seconds(0))).empty();
}

void PeerStatus::depart(Presence presence, const PeerExit& why) noexcept {
  RankArea& area = control_.rank(identity_.rank);
  if (area.presence.load() != Presence::kPresent) return;
  area.culprit = why.culprit;
  area.disagreed = why.disagreed ? 1 : 0;
  // The last byte stays the zero.
  copy_shortened(why.reason,
                 std::span(area.reason).first(sizeof area.reason - 1));
  area.presence.store(presence);
}

bool PeerStatus::has_ended(int rank) const {
  return has_exited((*processes_)[rank]);
}

std::string PeerStatus::end_of(int rank) const {
  const auto status = exit_status_of((*processes_)[rank]);
  return "its process " + (status ? describe(*status) : "ended");
}

// A program that returns from main() leaves its groups and ends a moment later:
// its exit status says more than that it left.
std::string PeerStatus::reason_of(const PeerExit& peer_exit) const {
  constexpr std::chrono::milliseconds kOnItsWayOut{50};
  if (peer_exit.culprit == identity_.rank ||
      control_.rank(peer_exit.culprit).presence.load() != Presence::kLeft)
    return peer_exit.reason;
  wait_for((*processes_)[peer_exit.culprit].get(), POLLIN, kOnItsWayOut);
  if (!has_ended(peer_exit.culprit)) return peer_exit.reason;
  return fmt::format("{}, and {}", peer_exit.reason, end_of(peer_exit.culprit));
}

Departure PeerStatus::departure_of(int rank) const {
  const Presence presence = control_.rank(rank).presence.load();
  if (rank == identity_.rank || presence == Presence::kAborted)
    return Departure::kInError;
  if (const auto status = exit_status_of((*processes_)[rank]))
    return status->ended_well() ? Departure::kInGoodOrder : Departure::kInError;
  // A rank that fails leaves too, and its status may be unknown, as when it
  // still runs.
  return presence == Presence::kLeft ? Departure::kLeft : Departure::kInError;
}

bool PeerStatus::has_left(int rank) const {
  return control_.rank(rank).presence.load() != Presence::kPresent;
}

// Whether the peer_exit of `rank`, which left in good order, ends the wait.
bool PeerStatus::is_missed(int rank, const std::vector<int>& needed,
                           Need need) const {
  if (needed.empty()) return true;
  if (need == Need::kEach)
    return std::ranges::find(needed, rank) != needed.end();
  return std::ranges::all_of(needed, [this](int r) { return has_left(r); });
}

std::optional<PeerExit> PeerStatus::find(const std::vector<int>& needed,
                                         Need need) const {
  std::optional<PeerExit> found;
  const bool look = processes_->any_has_ended();
  for (int r = 0; r < identity_.size; ++r) {
    if (r == identity_.rank) continue;
    const RankArea& area = control_.rank(r);
    const Presence presence = area.presence.load();
    // A process may announce why it leaves and end between the two checks.
    if (presence == Presence::kPresent && look && has_ended(r) &&
        area.presence.load() == Presence::kPresent)
      return PeerExit{r, end_of(r)};
    const Presence now = area.presence.load();
    if (now == Presence::kPresent || found) continue;
    if (now == Presence::kLeft && !is_missed(r, needed, need)) continue;
    found = {area.culprit, area.reason, area.disagreed != 0};
  }
  return found;
}

std::exception_ptr PeerStatus::error_for(const std::string& call,
                                         const PeerExit& peer_exit) const {
  if (peer_exit.disagreed)
    return std::make_exception_ptr(Mismatch(peer_exit.reason));
  const std::string reason = reason_of(peer_exit);
  return std::make_exception_ptr(PeerFailure(
      peer_exit.culprit,
      fmt::format("{} failed on rank {} of {} (group \"{}\"): {} on {} is "
                  "gone: {}{}",
                  call, identity_.rank, identity_.size, identity_.name,
                  identity_.describe(peer_exit.culprit), own_host_name(),
                  reason,
                  advice_after(departure_of(peer_exit.culprit), identity_,
                               peer_exit.culprit))));
}

}  // namespace lockstep

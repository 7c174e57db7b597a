#include "src/comm/shm/withdrawal.h"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <thread>
#include <vector>

#include "lockstep/base/deadline.h"
#include "lockstep/base/error.h"

namespace lockstep {
namespace {

// A unit takes microseconds, but its thread may wait for a core.
constexpr std::chrono::seconds kLongestUnit{30};
// How long this rank waits for other processes, whose writes it can prevent.
constexpr std::chrono::milliseconds kShortWait{10};

// Waits until no rank of `ranks` is working on a unit; false after `limit`.
bool all_through(const Rounds& rounds, const std::vector<int>& ranks,
                 Deadline limit) {
  const auto at_work = [&](int r) { return rounds.is_at_work(r); };
  while (std::ranges::any_of(ranks, at_work)) {
    if (limit.expired()) return false;
    std::this_thread::yield();
  }
  return true;
}

// The ranks in other processes that are alive.
std::vector<int> strangers(const ShmContext& context,
                           const PeerStatus& peer_status) {
  const std::vector<int>& neighbours = context.heaps->neighbours();
  std::vector<int> ranks;
  for (int r = 0; r < context.identity.size; ++r)
    if (r != context.identity.rank &&
        std::ranges::find(neighbours, r) == neighbours.end() &&
        !peer_status.has_ended(r))
      ranks.push_back(r);
  return ranks;
}

}  // namespace

void withdraw_memory(const ShmContext& context, const PeerStatus& peer_status,
                     const PendingCollective* oldest) {
  context.control.rank(context.identity.rank).gave_up.store(1);
  // This process's later writes come after that store.
  std::atomic_thread_fence(std::memory_order_seq_cst);
  Rounds& rounds = *context.rounds;
  if (!rounds.end_work()) return;
  if (!all_through(rounds, context.heaps->neighbours(), kLongestUnit))
    throw Timeout(
        "a thread of this process does not end its part of an aborted "
        "collective; it may still write to the collective's buffers");
  const bool through =
      all_through(rounds, strangers(context, peer_status), kShortWait);
  rounds.discard_unless_finished();
  if (!through && oldest != nullptr)
    context.heaps->detach(oldest->written_by_peers(context));
}

}  // namespace lockstep

// Tells the other ranks of a shared-memory group what a rank waits for, so that
// a rank whose deadline passes can name the rank that holds up all others.
//
// A thread that waits announces so in its rank's area at each check of its
// peers. A rank that is stopped no longer renews its announcement, which then
// counts no more: what it waited for may have come.
//
// Threads: AnnouncedWait: one thread. wait_of(): the thread that advances
//          operations. Where several threads of a rank wait, the last
//          announcement counts.
#pragma once

#include <cstdint>
#include <optional>

#include "lockstep/base/deadline.h"
#include "src/comm/operation/awaited_ranks.h"
#include "src/comm/shm/shared_operation.h"

namespace lockstep {

class AnnouncedWait {
 public:
  // The wait of the rank of `area`: for a message from or to rank `peer`, which
  // may be kAnySource, or for its collectives.
  AnnouncedWait(RankArea& area, std::optional<int> peer);

  // Announces the wait, or that it continues.
  void renew();
  // Withdraws the announcement. The announcement of a wait that failed stays:
  // it says why the rank gave up.
  void end();

 private:
  RankArea& area_;
  const std::uint32_t awaits_;
  bool is_announced_ = false;
};

// What rank `rank` waits for; nothing unless it has said so in the last
// `recently`.
std::optional<AwaitedRanks> wait_of(const ShmContext& context, int rank,
                                    Deadline::Clock::duration recently);

}  // namespace lockstep

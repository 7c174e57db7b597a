// Tells the other ranks of a shared-memory group what a rank waits for, so that
// a rank whose deadline passes can name the rank that holds up all others.
//
// A thread that waits announces so in its rank's area at each check of its
// peers. A rank that is stopped no longer renews its announcement, which then
// counts no more: what it waited for may have come. A rank whose group several
// threads use announces nothing: a wait of one of them does not say what the
// others do.
//
// Threads: one thread at a time.
#pragma once

#include <cstdint>
#include <optional>

#include "lockstep/base/deadline.h"
#include "src/comm/operation/awaited_ranks.h"
#include "src/comm/shm/shared_operation.h"

namespace lockstep {

class AnnouncedWait {
 public:
  // A wait of the rank of `area`, which begins now.
  explicit AnnouncedWait(RankArea& area) : area_(area) {}

  // Announces that the rank waits: for a message from or to rank `peer`, which
  // may be kAnySource, or for its collectives.
  void renew(std::optional<int> peer);
  // Withdraws the announcement. The announcement of a wait that failed stays:
  // it says why the rank gave up.
  void end();

 private:
  RankArea& area_;
  bool is_announced_ = false;
};

// What rank `rank` waits for; nothing unless it has said so in the last
// `recently`. The ranks that may send a message from any source are not listed.
std::optional<AwaitedRanks> wait_of(const ShmContext& context, int rank,
                                    Deadline::Clock::duration recently);

}  // namespace lockstep

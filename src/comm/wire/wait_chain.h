// Finds the ranks that hold up all others when a deadline passes.
//
// A rank that a late rank waits for may be late itself because it waits for a
// third rank. So each rank that gives up publishes in the store which ranks it
// waits for, and follows what those ranks publish, to the ends of the chains
// (ends_of_waits()). A rank that publishes nothing does not wait.
//
// A group and its duplicates have independent chains, as they have independent
// orders.
//
// Threads: stop() may be called from any thread, the others from one at a time.
// Errors:  none thrown. Where the store does not answer, the ranks that this
//          rank waits for itself are the answer.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "lockstep/base/deadline.h"
#include "lockstep/store/store.h"
#include "src/base/mutex.h"
#include "src/comm/operation/awaited_ranks.h"
#include "src/comm/rendezvous/group_fault.h"

namespace lockstep {

class WaitChain {
 public:
  struct Parts {
    std::shared_ptr<GroupFault> fault;
    int rank = 0;
    int size = 1;
    int duplicate = 0;  // 0: of the group itself
  };
  explicit WaitChain(Parts parts) : parts_(std::move(parts)) {}

  // Tells the other ranks what this rank waits for; returns whether it did.
  bool publish(const AwaitedRanks& awaited, Deadline deadline) noexcept;
  // This rank does not wait any more.
  void retract(Deadline deadline) noexcept;

  // The ends of the chains that begin with the ranks that this rank waits for.
  // Waits until `deadline` for ranks that have not published.
  std::vector<int> ends(const AwaitedRanks& awaited,
                        Deadline deadline) noexcept;

  // Makes present and future calls of ends() return at once.
  void stop() noexcept;

 private:
  // Between two ranks there is nothing to follow.
  bool is_useless() const { return parts_.size <= 2; }
  std::string key(int rank) const;
  std::shared_ptr<Cancellation> begin_to_follow();
  std::optional<int> first_to_publish(const std::vector<int>& ranks,
                                      Deadline deadline,
                                      const Cancellation& stopped);
  std::optional<AwaitedRanks> published_by(int rank, Deadline deadline,
                                           const Cancellation& stopped);

  const Parts parts_;
  Mutex mutex_;
  bool stopped_ LOCKSTEP_GUARDED_BY(mutex_) = false;
  // Exists while ends() follows, because it costs a descriptor.
  std::shared_ptr<Cancellation> following_ LOCKSTEP_GUARDED_BY(mutex_);
};

}  // namespace lockstep

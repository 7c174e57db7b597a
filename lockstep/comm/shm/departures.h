// Who of a shared-memory group is gone, and why.
//
// A rank that leaves says so in its area; one that dies is seen by its pidfd. A
// rank that gives up because of another names that one, so that a cascade of
// errors leads back to its cause.
//
// Threads: every method may be called from any thread; depart() once at a time.
#pragma once

#include <exception>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "lockstep/comm/backend.h"
#include "lockstep/comm/shm/control_block.h"
#include "lockstep/net/file_descriptor.h"

namespace lockstep {

// Why a rank takes no further part.
struct Departure {
  int culprit = 0;  // the rank whose failure was the cause
  std::string reason;
  bool disagreed = false;  // the ranks' calls did not fit together
};

class Departures {
 public:
  // `processes` has a pidfd a rank; a group's duplicates share them.
  Departures(const GroupIdentity& identity, ControlView control,
             std::shared_ptr<const std::vector<FileDescriptor>> processes)
      : identity_(identity),
        control_(control),
        processes_(std::move(processes)) {}

  // Says that this rank is gone; what it said first stays. Whoever waits must
  // be woken by the caller.
  void depart(Presence presence, const Departure& why) noexcept;

  // Whether something waits for each of some ranks, or for any one of them.
  enum class Need { kEach, kAnyOne };

  // A rank whose absence ends what `needed` ranks are needed for (all of them
  // when empty). Dead and failed ranks always do, ranks that left in good order
  // only when needed. A process that ended is a better explanation than a rank
  // that gave up because of it.
  std::optional<Departure> find(const std::vector<int>& needed,
                                Need need = Need::kEach) const;

  // Whether the process of rank `rank` has ended.
  bool has_ended(int rank) const;

  // The error that `call`, in flight on this rank, ends with.
  std::exception_ptr error_for(const std::string& call,
                               const Departure& departure) const;

 private:
  // "its process exited with code 3", or as much of that as is known.
  std::string end_of(int rank) const;
  std::string reason_of(const Departure& departure) const;
  bool has_left(int rank) const;
  bool is_missed(int rank, const std::vector<int>& needed, Need need) const;

  const GroupIdentity identity_;
  ControlView control_;
  std::shared_ptr<const std::vector<FileDescriptor>> processes_;
};

}  // namespace lockstep

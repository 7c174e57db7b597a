// Checks that the ranks' calls match: each rank announces its call to the
// others through a CPU group. The operation itself does not wait for the check.
//
// Threads: one thread at a time.
// Errors:  Mismatch with the table of each rank's call; the errors of the
//          group's operations.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "lockstep/comm/work.h"
#include "src/base/settings.h"
#include "src/comm/operation/backend.h"

namespace lockstep {

// Counts the collectives of the CPU group.
using ControlSequence = std::uint64_t;
// The CPU group's other messages have tag 0.
inline constexpr int kTagOfChecks = 1;

class CallCheck {
 public:
  // Whether ranks check such an operation: LOCKSTEP_CHECK decides, which is the
  // same on all ranks. As between hosts, small means up to 64 KiB.
  static bool is_wanted(const Operation& operation, OperationCheck check);

  struct Call {
    const Operation& operation;
    bool is_captured = false;  // and not carried out
  };

  // Announces the call: a collective to all ranks, a message to its receiver.
  // `control` is the CPU group. The object must not move, and outlives the
  // operations that it starts there.
  CallCheck(const Call& call, Backend& control, int size,
            ControlSequence& sequence);
  CallCheck(const CallCheck&) = delete;
  CallCheck& operator=(const CallCheck&) = delete;

  // Whether all ranks have announced matching calls; false while some have not
  // announced theirs.
  bool passed(const Operation& operation, int rank, const std::string& group);

  // The ranks that have not announced their calls.
  std::vector<int> missing() const {
    return passed_ ? std::vector<int>{} : exchange_.missing();
  }

  // Call after the CPU group has been aborted. Returns when no thread touches
  // this object any more.
  void settle() noexcept;

 private:
  struct Told {
    AnnouncedCall call;
    std::uint64_t is_captured = 0;
  };

  void tell_all(Backend& control, ControlSequence& sequence);
  void tell_receiver(const Operation& operation, Backend& control);
  void check_all(int rank, const std::string& group) const;

  Told mine_;
  std::vector<Told> all_;
  std::vector<std::int64_t> my_counts_, all_counts_;  // of all_to_all_v
  Work exchange_, exchange_of_counts_;
  bool passed_ = false;
};

}  // namespace lockstep

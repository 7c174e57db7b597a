// Whether ranks have called what fits together: each tells the others through a
// group of the CPU, beside the operation itself, which waits for it no moment.
//
// Threads: one at a time.
// Errors:  Mismatch with the table of who called what; what the group's
//          operations throw.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "lockstep/base/settings.h"
#include "lockstep/comm/backend.h"
#include "lockstep/comm/work.h"

namespace lockstep {

// Counts the collectives of the group of the CPU.
using ControlSequence = std::uint64_t;
// Of its messages, those that are not these have tag 0.
inline constexpr int kTagOfChecks = 1;

class CallCheck {
 public:
  // Whether ranks tell each other about such an operation, by LOCKSTEP_CHECK,
  // which all ranks have alike. As between hosts, a small one has up to 64 KiB.
  static bool is_wanted(const Operation& operation, OperationCheck check);

  struct Call {
    const Operation& operation;
    bool is_captured = false;  // and not carried out
  };

  // Tells: all ranks of a collective, and of a message the receiver. `control`
  // is the group of the CPU. The object stays where it is, and outlives what
  // it has started there.
  CallCheck(const Call& call, Backend& control, int size,
            ControlSequence& sequence);
  CallCheck(const CallCheck&) = delete;
  CallCheck& operator=(const CallCheck&) = delete;

  // Whether all have told, and it fits; not yet, as long as some have not.
  bool passed(const Operation& operation, int rank, const std::string& group);

  // Those that have not.
  std::vector<int> missing() const {
    return passed_ ? std::vector<int>{} : exchange_.missing();
  }

  // Returns when nothing touches this object any more, once the group of the
  // CPU has been aborted.
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

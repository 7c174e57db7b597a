// A pending collective of a shared-memory group: a small state machine that
// makes all possible progress and never blocks.
//
// In the first round every rank announces its call and where its elements lie,
// or brings them at once if they are few. Then a DirectTransfer finishes the
// operation if every rank can reach the elements, otherwise a StagedTransfer.
//
// Threads: one thread at a time.
#pragma once

#include <span>
#include <vector>

#include "lockstep/base/deadline.h"
#include "src/comm/shm/direct_transfer.h"
#include "src/comm/shm/shared_operation.h"
#include "src/comm/shm/staged_transfer.h"

namespace lockstep {

class PendingCollective {
 public:
  // Takes over the operation's lists; the memory they point to stays the
  // caller's.
  void begin(const Operation& operation, const GroupIdentity& identity);

  // Makes all possible progress; returns whether the operation is complete.
  // Throws Mismatch when the ranks disagree.
  bool advance(ShmContext& context);

  // The ranks that have not arrived or have not finished their part.
  std::vector<int> missing(const ShmContext& context) const;

  // The buffers of this rank that peers may write to at present.
  std::span<const Buffer> written_by_peers(const ShmContext& context) const;

  const Operation& operation() const { return shared_.operation(); }
  // Whether it is so short that polling for its peers pays.
  bool small() const { return step_ == Step::kMeeting; }
  // Starts the deadline; before this call the operation has no deadline.
  // (Reading the clock takes a good part of a small operation's time.)
  void start_clock();
  Deadline deadline() const { return deadline_; }
  Deadline::Clock::time_point begun() const { return begun_; }

 private:
  enum class Step { kQueued, kMeeting, kDirect, kStaged };

  bool after_meeting(ShmContext& context);

  SharedOperation shared_;
  DirectTransfer direct_;
  StagedTransfer staged_;
  Step step_ = Step::kQueued;
  Deadline::Clock::time_point begun_;
  Deadline deadline_ = Deadline::never();
};

}  // namespace lockstep

// An operation on its way through a shared-memory group: a small state machine
// that goes as far as it can and never blocks.
//
// In its first round every rank tells what it does and where its elements lie,
// or brings them at once if they are few. From there a DirectTransfer finishes
// it where everybody can reach them, and a StagedTransfer where not.
//
// Threads: one thread at a time.
#pragma once

#include <span>
#include <vector>

#include "lockstep/base/deadline.h"
#include "lockstep/comm/shm/direct_transfer.h"
#include "lockstep/comm/shm/shared_operation.h"
#include "lockstep/comm/shm/staged_transfer.h"

namespace lockstep {

class Flight {
 public:
  // Takes over the operation's lists; the memory they point to stays the
  // caller's.
  void begin(const Operation& operation, const GroupIdentity& identity);

  // Goes as far as possible; returns whether the operation is complete. Throws
  // Mismatch when the ranks disagree.
  bool advance(ShmContext& context);

  // The ranks that have not arrived, or hold it up in the middle.
  std::vector<int> missing(const ShmContext& context) const;

  // Which buffers of this rank its peers may write to at present.
  std::span<const Buffer> written_by_peers(const ShmContext& context) const;

  const Operation& operation() const { return shared_.operation(); }
  // Whether it takes so little that looking for its peers again at once pays.
  bool small() const { return step_ == Step::kMeeting; }
  // Time is counted from here; until then there is no deadline. (Reading the
  // clock takes a good part of what a small operation takes.)
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

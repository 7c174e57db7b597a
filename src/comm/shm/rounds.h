// One rank's part in the rounds of which every operation of a shared-memory
// group consists: bring elements, read what the others brought, share the work.
//
// In round r each rank fills slot r % 2 of its area and raises the slot's flag
// to r. When all flags are at r, every rank may read all slots. A slot is free
// again two rounds later: a rank raises its flag to r + 1 after it has finished
// round r, so once all flags are at r + 1 no rank reads slots of round r.
//
// Work on large buffers is cut into units that any rank may claim, so that a
// rank that is not running delays only the round that it has not reached.
//
// A rank that gives up ends the work of its round: unclaimed units are never
// claimed, and unless all claimed units are finished, the round completes on no
// rank. docs/design/shm.md says why.
//
// Threads: one thread at a time.
#pragma once

#include <algorithm>
#include <string>
#include <vector>

#include "src/comm/shm/control_block.h"
#include "src/comm/shm/doorbell.h"

namespace lockstep {

class Rounds {
 public:
  // `round` is the last completed round, the same on all ranks.
  Rounds(ControlView control, int rank, int ranks, Doorbell& bell,
         std::uint64_t round = 0)
      : control_(control),
        rank_(rank),
        ranks_(ranks),
        bell_(bell),
        round_(round) {}

  // The last round in which this rank has arrived.
  std::uint64_t current() const { return round_; }

  // The slot to fill for the next round.
  Slot& next_slot() { return slot(rank_, round_ + 1); }

  // Raises the flag of next_slot(): this rank has arrived in the next round.
  // Wakes the others if it is the last to do so.
  void arrive();

  // Call once all have arrived: prefetches the cache lines of next_slot() for
  // writing, which the peers hold since they last read them, so that the next
  // operation does not wait for them.
  void take_back_next_slot();

  // Whether every rank has arrived in the current round.
  bool all_arrived();

  // The ranks that have not.
  std::vector<int> missing() const { return absent_from(round_); }

  // Announces that this rank begins, or has done, its part of the current
  // round's work; finish() comes between the two.
  void begin_part() { tell_part(Part::kAtWork); }
  void end_part() { tell_part(Part::kDone); }
  // Whether rank `r` may be in the middle of a unit of the current round.
  bool is_at_work(int r) const { return part_of(r) == Part::kAtWork; }

  // Prevents all ranks from claiming more of the current round's work. Returns
  // whether any rank claimed some: otherwise no rank touches the memory of
  // another in this round.
  bool end_work();

  // Call after end_work() returned true: unless all claimed units are finished,
  // makes the round complete on no rank. Returns whether they are finished.
  bool discard_unless_finished();

  // The ranks that the round's work waits for. kOwn: each rank has its own
  // part, and the ranks are those that have not done theirs. kAnybodys: any
  // rank may claim units, and the ranks are those that have claimed some.
  enum class Work { kOwn, kAnybodys };
  std::vector<int> unfinished(Work work) const;

  // The ranks that rank `r` waits for in the last round in which it arrived:
  // those that have not arrived; or those at work; or, once `r` has done its
  // own part of the work, those that have not done theirs.
  std::vector<int> awaited_by(int r) const;

  // Rank `r`'s slot of the current round; valid once all have arrived.
  const Slot& brought(int r) const { return slot(r, round_); }

  // Claims one of `units` units of the current round's work; returns false if
  // none is left.
  bool claim(std::uint32_t units, std::uint32_t& unit);

  // Announces that `count` more of `units` units are done. Wakes the others if
  // these are the last.
  void finish(std::uint32_t count, std::uint32_t units);

  // Whether all of `units` units are done, and no rank had given up before.
  bool all_finished(std::uint32_t units) const;

  // The last operation in which rank `r` was seen, or "no operation".
  std::string last_seen(int r) const;

 private:
  Slot& slot(int r, std::uint64_t round) const {
    return control_.rank(r).slots[round % 2];
  }
  // The last round in which rank `r` has arrived.
  std::uint64_t last_of(int r) const {
    return std::max(slot(r, 0).round.load(), slot(r, 1).round.load());
  }
  std::vector<int> absent_from(std::uint64_t round) const;
  std::uint64_t tagged(std::uint32_t count) const {
    return round_ << ControlBlock::kCountBits | count;
  }
  void tell_part(Part part) {
    control_.rank(rank_).part.store(tagged(static_cast<std::uint32_t>(part)),
                                    std::memory_order_release);
  }
  Part part_of(int r) const { return part_of(r, round_); }
  Part part_of(int r, std::uint64_t round) const {
    return static_cast<Part>(
        count_of(control_.rank(r).part.load(std::memory_order_acquire), round));
  }
  static bool is_of(std::uint64_t counter, std::uint64_t round) {
    return (counter ^ round << ControlBlock::kCountBits) >>
               ControlBlock::kCountBits ==
           0;
  }
  // Whether a counter was set by a rank in a later round, which can only be the
  // next one: then this round has no work left. Any other counter of another
  // round is an old one, of any age.
  bool is_later(std::uint64_t counter) const {
    return is_of(counter, round_ + 1);
  }
  // The count of a counter in this round.
  std::uint32_t count_of(std::uint64_t counter) const {
    return count_of(counter, round_);
  }
  static std::uint32_t count_of(std::uint64_t counter, std::uint64_t round) {
    constexpr std::uint64_t kCounts = (1u << ControlBlock::kCountBits) - 1;
    return is_of(counter, round) ? static_cast<std::uint32_t>(counter & kCounts)
                                 : 0;
  }

  ControlView control_;
  int rank_;
  int ranks_;
  Doorbell& bell_;
  std::uint64_t round_;
  int seen_ = 0;  // ranks below this one were seen to have arrived
};

}  // namespace lockstep

// One rank's part in the rounds that every operation of a shared-memory group
// is made of: bring something, see what the others brought, share the work.
//
// In round r each rank fills slot r % 2 of its area and raises the slot's flag
// to r. When all flags stand at r, everybody may read what all have brought. A
// slot is free again two rounds later: to raise flag r + 1, a rank has finished
// round r, so once all flags stand at r + 1 nobody reads slots of round r.
//
// Work on large buffers is cut into units that any rank may claim, so that a
// rank that is not running holds up nothing but what it has not yet brought.
//
// A rank that gives up ends the work of its round: a unit that no rank has
// claimed is never claimed, and unless all claimed units are finished, the
// round ends for no rank. docs/design/shm.md says why.
//
// Threads: one thread at a time.
#pragma once

#include <string>
#include <vector>

#include "lockstep/comm/shm/control_block.h"
#include "lockstep/comm/shm/doorbell.h"

namespace lockstep {

class Rounds {
 public:
  // `round` is the last round that is over, the same on all ranks.
  Rounds(ControlView control, int rank, int ranks, Doorbell& bell,
         std::uint64_t round = 0)
      : control_(control),
        rank_(rank),
        ranks_(ranks),
        bell_(bell),
        round_(round) {}

  // The round in which this rank has arrived last.
  std::uint64_t current() const { return round_; }

  // The slot to fill for the next round.
  Slot& next_slot() { return slot(rank_, round_ + 1); }

  // Raises the flag of next_slot(): this rank has arrived in the next round.
  void arrive();

  // Once all have arrived: fetches the lines of next_slot() for writing, which
  // the peers took when they last read them, so that the next operation does
  // not wait for that.
  void take_back_next_slot();

  // Whether every rank has arrived in the current round.
  bool all_arrived();

  // Those that have not.
  std::vector<int> missing() const;

  // Says that this rank begins with, or has done, its part of the current
  // round's work; finish() comes between the two.
  void begin_part() { tell_part(Part::kAtWork); }
  void end_part() { tell_part(Part::kDone); }
  // Whether rank `r` may be in the middle of a unit of the current round.
  bool is_at_work(int r) const { return part_of(r) == Part::kAtWork; }

  // Lets no rank take more of the current round's work. Returns whether any
  // rank took some: otherwise none touches the memory of another in this round.
  bool end_work();

  // After end_work(), which returned true: makes the round one that ends for no
  // rank, unless all units that were taken are finished. Returns whether they
  // are.
  bool discard_unless_finished();

  // Those without which the round's work does not end: where everybody has a
  // part of its own, those that have not done theirs; where anybody takes what
  // is there, those that have taken something.
  enum class Work { kOwn, kAnybodys };
  std::vector<int> unfinished(Work work) const;

  // What rank `r` brought to the current round; valid once all have arrived.
  const Slot& brought(int r) const { return slot(r, round_); }

  // Takes one of `units` units of the current round's work; returns false when
  // none is left.
  bool claim(std::uint32_t units, std::uint32_t& unit);

  // Says that `count` more units are done.
  void finish(std::uint32_t count);

  // Whether all of `units` units are done, and no rank had given up before.
  bool all_finished(std::uint32_t units) const;

  // The operation that rank `r` was last seen in, or "no operation".
  std::string last_seen(int r) const;

 private:
  Slot& slot(int r, std::uint64_t round) const {
    return control_.rank(r).slots[round % 2];
  }
  std::uint64_t tagged(std::uint32_t count) const {
    return round_ << ControlBlock::kCountBits | count;
  }
  void tell_part(Part part) {
    control_.rank(rank_).part.store(tagged(static_cast<std::uint32_t>(part)),
                                    std::memory_order_release);
  }
  Part part_of(int r) const {
    return static_cast<Part>(
        count_of(control_.rank(r).part.load(std::memory_order_acquire)));
  }
  static bool is_of(std::uint64_t counter, std::uint64_t round) {
    return (counter ^ round << ControlBlock::kCountBits) >>
               ControlBlock::kCountBits ==
           0;
  }
  // Whether a counter was set by a rank that is in a later round, which can
  // only be the next one: then nothing is left to be done in this one. Every
  // other counter of another round is an old one, however old.
  bool is_later(std::uint64_t counter) const {
    return is_of(counter, round_ + 1);
  }
  // How many a counter stands at in this round.
  std::uint32_t count_of(std::uint64_t counter) const {
    constexpr std::uint64_t kCounts = (1u << ControlBlock::kCountBits) - 1;
    return is_of(counter, round_)
               ? static_cast<std::uint32_t>(counter & kCounts)
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

// What goes from whom to whom in an operation: the meaning of every collective
// in one place, from which backends are made.
//
// Each rank brings something for some ranks. In the kinds that move, what rank
// a brings for b arrives in b's memory; in those that reduce, what all ranks
// bring for b is combined and lies in b's result.
//
// Threads: pure functions.
#pragma once

#include "lockstep/comm/buffer_run.h"
#include "lockstep/comm/operation.h"

namespace lockstep {

// One rank's view of an operation among `ranks` ranks.
struct Routes {
  const Operation& operation;
  int rank = 0;
  int ranks = 1;

  // The list that this rank brings something from; empty when it brings
  // nothing.
  std::span<const Buffer> source() const;

  // What this rank brings for rank `to`; empty when nothing.
  Run outgoing(int to) const;

  // Where the bytes lie that rank `from` brings for this one; empty when none.
  // Of the kinds that move.
  Run incoming(int from) const;

  // Where this rank gets the combined elements; empty when it gets none. Of the
  // kinds that reduce.
  Run result() const;

 private:
  // Rank `r`'s part of the longer list.
  Run block(std::span<const Buffer> list, int r) const;
};

}  // namespace lockstep

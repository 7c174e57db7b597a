// Which elements go from which rank to which in an operation: the definition of
// every collective, for all backends.
//
// Each rank brings elements for some ranks. In the kinds that move, rank a's
// elements for b arrive in b's memory; in the kinds that reduce, all ranks'
// elements for b are combined into b's result.
#pragma once

#include "src/comm/operation/buffer_span.h"
#include "src/comm/operation/operation.h"

namespace lockstep {

// One rank's view of an operation among `ranks` ranks.
struct Routes {
  const Operation& operation;
  int rank = 0;
  int ranks = 1;

  // The list whose elements this rank brings; empty if it brings none.
  std::span<const Buffer> source() const;

  // The elements that this rank brings for rank `to`; may be empty.
  BufferSpan outgoing(int to) const;

  // The destination of rank `from`'s elements for this rank; may be empty. For
  // the kinds that move.
  BufferSpan incoming(int from) const;

  // The destination of the combined elements; empty if this rank gets none. For
  // the kinds that reduce.
  BufferSpan result() const;

 private:
  // Rank `r`'s part of the longer list.
  BufferSpan block(std::span<const Buffer> list, int r) const;
};

}  // namespace lockstep

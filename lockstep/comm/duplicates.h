// The duplicates of a group: other orders of collectives among the same ranks,
// over the same connections and memory.
//
// A group's ranks agree on the number of each, and number n of one rank is
// number n of all. One that is no longer used is kept and given out again, once
// all ranks have let go of it: what has been started in it is complete then.
//
// Threads: take() by one thread of a rank at a time; all else from any.
// Errors:  InvalidArgument on every rank where there are too many; what
//          ProcessGroup's operations throw.
// Source:  MPI_Comm_dup.
#pragma once

#include <functional>
#include <memory>
#include <string>

#include "lockstep/comm/backend.h"

namespace lockstep {

class ProcessGroup;

class Duplicates {
 public:
  static constexpr int kMost = 256;

  // Makes number `number`, from 1 on; waits for no rank.
  using Make = std::function<std::shared_ptr<ProcessGroup>(int number)>;

  Duplicates();

  // One that no rank uses, until the pointer goes. Every rank of `original`
  // calls it at the same point.
  std::shared_ptr<ProcessGroup> take(ProcessGroup& original, const Make& make);

  // Leaves them all.
  void leave() noexcept;

 private:
  class Kept;
  const std::shared_ptr<Kept> kept_;
};

}  // namespace lockstep

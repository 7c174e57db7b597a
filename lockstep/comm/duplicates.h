// The duplicates of a group: other orders of collectives among the same ranks,
// over the same connections and memory.
//
// A group's ranks agree on the number of each, and number n of one rank is
// number n of all. One that is no longer used is kept and given out again, once
// all ranks have let go of it: what has been started in it is complete then.
// Duplicates of a duplicate are the group's: one count numbers them all.
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

  // Makes number `number`, from 1 on, called `name`; waits for no rank.
  using Make = std::function<std::shared_ptr<ProcessGroup>(
      int number, const std::string& name)>;

  explicit Duplicates(std::string group);

  // Makes these, which are of a duplicate, the ones of its group.
  void share(const Duplicates& of_group);

  // One that no rank uses, until the pointer goes. Every rank calls it at the
  // same point of `original`, which is the group or a duplicate.
  std::shared_ptr<ProcessGroup> take(ProcessGroup& original, const Make& make);

  // Leaves them all, unless these are a duplicate's.
  void leave() noexcept;

 private:
  class Kept;
  std::shared_ptr<Kept> own_;  // null where they are shared
  std::weak_ptr<Kept> kept_;   // lives while a duplicate is in use
};

}  // namespace lockstep

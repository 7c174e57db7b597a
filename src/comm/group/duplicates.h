// The duplicates of a group: other orders of collectives among the same ranks,
// over the same connections and memory.
//
// The ranks agree on each duplicate's number: number n on one rank is number n
// on all. An unused duplicate is kept, and handed out again once all ranks have
// released it: its operations are complete then. A duplicate of a duplicate
// belongs to the group: one count numbers them all.
//
// Threads: one thread per rank at a time calls take(); any thread may call the
//          rest.
// Errors:  InvalidArgument on every rank when there are too many; what
//          ProcessGroup's operations throw.
// Source:  MPI_Comm_dup.
#pragma once

#include <functional>
#include <memory>

#include "src/comm/operation/backend.h"

namespace lockstep {

class GroupCore;
class ProcessGroup;

class Duplicates {
 public:
  static constexpr int kMost = 256;

  // Makes duplicate `number` (from 1); does not wait for other ranks.
  using Make = std::function<std::shared_ptr<ProcessGroup>(int number)>;

  Duplicates();

  // Called on a duplicate's Duplicates: from now on they are those of its
  // group.
  void share(const Duplicates& of_group);

  // Returns a duplicate that no rank uses; the caller holds it until the
  // pointer is destroyed. Every rank calls this at the same point of
  // `original`, which is the group or a duplicate.
  std::shared_ptr<ProcessGroup> take(GroupCore& original, const Make& make);

  // Leaves all duplicates, unless they are shared with the group.
  void leave() noexcept;

 private:
  class Kept;
  std::shared_ptr<Kept> own_;  // null where they are shared
  std::weak_ptr<Kept> kept_;   // lives while a duplicate is in use
};

}  // namespace lockstep

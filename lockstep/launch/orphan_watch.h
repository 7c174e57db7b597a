// Finds the processes that workers leave behind.
//
// While it lives, this process adopts every descendant whose parent dies
// (PR_SET_CHILD_SUBREAPER), even one that has left its process group and
// session; so after the workers are gone, what they started is among our
// children. Children that were there before it was constructed are let be; any
// that this process starts meanwhile, other than workers, it must not have.
//
// Threads: one thread at a time.
// Errors:  none; where /proc is missing, nothing is found.
#pragma once

#include <sys/types.h>

#include <span>
#include <vector>

namespace lockstep {

class OrphanWatch {
 public:
  OrphanWatch();
  ~OrphanWatch();
  OrphanWatch(const OrphanWatch&) = delete;
  OrphanWatch& operator=(const OrphanWatch&) = delete;

  // Lets go of those that have ended and returns those that still run.
  // `workers` are not counted.
  std::vector<pid_t> living(std::span<const pid_t> workers) const;

 private:
  std::vector<pid_t> children_before_;
  int was_subreaper_ = 0;
};

}  // namespace lockstep

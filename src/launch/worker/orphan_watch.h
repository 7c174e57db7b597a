// Finds the processes that workers leave behind.
//
// While it lives, this process adopts every descendant whose parent dies
// (PR_SET_CHILD_SUBREAPER), even one that has left its process group and
// session. So after the workers are gone, the processes that they started are
// our children. Children from before its construction do not count. Meanwhile
// this process must start no children except workers.
//
// Threads: one thread at a time.
// Errors:  none; without /proc it finds no process.
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

  // Reaps the orphans that have ended and returns those that still run. Ignores
  // `workers`.
  std::vector<pid_t> living(std::span<const pid_t> workers) const;

 private:
  std::vector<pid_t> children_before_;
  int was_subreaper_ = 0;
};

}  // namespace lockstep

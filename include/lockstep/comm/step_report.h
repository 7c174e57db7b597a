// Tells `lockstep status` how fast this rank's training is, and what it spends
// its time on, under `lockstep run`.
//
//     StepReport report(group);
//     while (auto batch = loader.next(Deadline::never())) {
//       report.data_ready();
//       train(*batch);
//       report.step_done(batch->count());
//     }
//
// Without one, status counts the backward passes that reduce gradients over
// several ranks. An object adds samples per second and the time spent on data,
// and counts the program's own steps. A call stores a few numbers in memory
// that status reads, and takes no lock. Without a launcher, and in a forked
// child, it does nothing.
//
// Threads: one thread at a time; one object per process.
// Errors:  InvalidArgument for a null group and for negative samples.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <memory>

#include "lockstep/comm/process_group.h"

namespace lockstep {

class StepReport {
 public:
  // `group`: the default group, or one that was made from it.
  explicit StepReport(std::shared_ptr<ProcessGroup> group);
  // From here on Lockstep counts the steps itself again.
  ~StepReport();
  StepReport(const StepReport&) = delete;
  StepReport& operator=(const StepReport&) = delete;

  // This rank has the batch of its next step. The time since step_done(), and
  // since the construction, was spent on data. Of several calls in a step, as
  // for micro-batches, the first counts: the time after it is also computing.
  void data_ready();
  // A step of this rank has ended. `samples`: of this rank alone.
  void step_done(std::int64_t samples);

 private:
  const std::shared_ptr<ProcessGroup> group_;
  const pid_t process_;  // that made it
  bool reports_data_ = false;
};

}  // namespace lockstep

// What a training loop of a user's own calls besides its steps: the report of
// its speed, the agreement to stop, and a mean over the samples of all ranks.
#pragma once

#include <sys/types.h>

#include <csignal>
#include <cstdint>
#include <memory>

#include "lockstep/comm/process_group.h"

namespace lockstep {

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

// Ends training in good order when a user or a scheduler asks for it: by
// SIGTERM, as Slurm and Kubernetes send it, and as `lockstep run` passes it on.
//
//     StopRequest stop(group);
//     for (auto& batch : batches) {
//       train(batch);
//       if (!stop.agreed()) continue;
//       checkpoints.save(step);
//       return StopRequest::kStartAgain;
//     }
//
// The signal comes to each rank at another moment, and perhaps to one rank
// only. So the ranks agree after each step, by an all_reduce of four bytes.
//
// Threads: each object belongs to one thread. Ranks that are threads of one
//          process each have one, and all learn of the process's signal.
// Errors:  InvalidArgument where the process has one for another signal, or
//          `signal` cannot be handled; from agreed() those of all_reduce.
// Source:  EX_TEMPFAIL is of BSD's sysexits.h: the caller may try again.

class StopRequest {
 public:
  // The exit code by which a program says that it has saved its state and can
  // be started again (EX_TEMPFAIL). Launchers pass it on.
  static constexpr int kStartAgain = 75;

  // From now on `signal` no longer ends this process, but a second one does
  // that comes over two seconds later.
  explicit StopRequest(std::shared_ptr<ProcessGroup> group,
                       int signal = SIGTERM);
  // The process's last one restores the signal's earlier action, unless the
  // ranks have agreed to stop: the signal may come to another rank when this
  // one is already leaving.
  ~StopRequest();
  StopRequest(const StopRequest&) = delete;
  StopRequest& operator=(const StopRequest&) = delete;

  // Whether a rank of the group has received the signal: the same answer on all
  // ranks. Every rank must call it at the same point of the program.
  bool agreed();

 private:
  const std::shared_ptr<ProcessGroup> group_;
};

// The mean of a quantity over the samples of all ranks, each sample counted
// once, however many each rank has: the loss or the accuracy of a test set that
// the ranks divide.
//
//     lockstep::MeanMetric loss;
//     for (const auto& [inputs, targets] : share_of_this_rank)
//       loss.update(loss_of(inputs, targets), inputs.size(0));
//     const double perplexity = std::exp(loss.compute(*group));
//
// The average of the ranks' means would be another number where the ranks have
// different numbers of samples.
//
// Threads: single-threaded.
// Errors:  InvalidArgument for a weight that is negative, infinite or NaN;
//          those of collectives.
// Source:  torcheval.metrics.Mean.

class MeanMetric {
 public:
  // Adds `weight` samples whose mean is `mean`, on this rank alone. Without a
  // weight nothing is added, whatever the mean: that of no samples is NaN.
  void update(double mean, double weight = 1);

  // The mean over what all ranks have added since their last reset(), with the
  // same bits on every rank; NaN if no rank has added anything. A collective:
  // every rank of `group` calls it, also one that has added nothing.
  double compute(ProcessGroup& group, const CallOptions& options = {}) const;

  // Forgets what this rank has added.
  void reset() { *this = {}; }

 private:
  double sum_ = 0;  // of means times weights
  double weight_ = 0;
};

}  // namespace lockstep

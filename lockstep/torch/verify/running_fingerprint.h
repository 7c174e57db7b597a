// Watches the replicas of a model during training: every N steps the ranks
// compare a hash of all their parameters.
//
//     lockstep::RunningFingerprint fingerprint(model.module());
//     for (…) {
//       … optimizer.step();
//       fingerprint.step_done();
//     }
//
// Replicas drift apart silently: by a bit that flips in memory, by code that
// writes to a parameter on one rank, by an optimizer whose state was loaded on
// some ranks only. The optimizer's state is not hashed: an error in it shows in
// the parameters a step later.
//
// Threads: single-threaded. Every rank makes it and calls it after the same
//          steps.
// Errors:  InvalidArgument for a period below 1. From step_done() and check():
//          Mismatch on every rank when replicas differ, with the parameter, the
//          element, the ranks and their values; the group keeps working, and a
//          caller that catches the error may continue. Those of ProcessGroup's
//          operations.
// See docs/guides/consistency.md.
#pragma once

#include <torch/nn/module.h>

#include <cstdint>
#include <memory>
#include <optional>

#include "lockstep/comm/group/process_group.h"
#include "lockstep/torch/verify/replica_difference.h"

namespace lockstep {

struct RunningFingerprintOptions {
  // The ranks that train together; default_group() when empty.
  std::shared_ptr<ProcessGroup> group{};
  // Steps from one comparison to the next.
  std::int64_t every = 100;
  // Whether buffers are compared too; they must be equal on all ranks between
  // steps, as a SyncBatchNorm's are.
  bool buffers = false;
};

class RunningFingerprint {
 public:
  explicit RunningFingerprint(std::shared_ptr<const torch::nn::Module> module,
                              const RunningFingerprintOptions& options = {});

  // Call it after each step of the optimizer; every N-th call compares.
  void step_done();

  // Compares now.
  void check();

  // The number of steps so far; a program that resumes from a checkpoint sets
  // it.
  std::int64_t step() const { return step_; }
  void set_step(std::int64_t step) { step_ = step; }

  // The result of the last comparison, for a program that needs more than the
  // text.
  const std::optional<ReplicaDifference>& difference() const {
    return difference_;
  }

 private:
  [[noreturn]] void throw_difference() const;

  std::shared_ptr<const torch::nn::Module> module_;
  std::shared_ptr<ProcessGroup> group_;
  RunningFingerprintOptions options_;
  std::int64_t step_ = 0;
  std::optional<std::int64_t> last_equal_;
  std::optional<ReplicaDifference> difference_;
};

}  // namespace lockstep

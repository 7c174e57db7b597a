// A watch over the replicas of a model while it trains: every so many steps the
// ranks compare a hash of all their parameters.
//
//     lockstep::RunningFingerprint fingerprint(model.module());
//     for (…) {
//       … optimizer.step();
//       fingerprint.step_done();
//     }
//
// What makes replicas drift apart does so without a word: a bit that flips in
// memory, code that writes to a parameter on one rank, an optimizer whose state
// was loaded on some ranks only. An optimizer's state is not hashed: what is
// wrong in it is in the parameters a step later.
//
// Threads: single-threaded. Every rank makes it and calls it after the same
//          steps.
// Errors:  InvalidArgument for a period below 1. From step_done() and check():
//          Mismatch on every rank when replicas differ, with the parameter, the
//          element, the ranks and their values; the group goes on, and so may
//          whoever catches it. What ProcessGroup's operations throw.
// See docs/guides/consistency.md.
#pragma once

#include <torch/nn/module.h>

#include <cstdint>
#include <memory>
#include <optional>

#include "lockstep/comm/process_group.h"
#include "lockstep/torch/replica_difference.h"

namespace lockstep {

struct RunningFingerprintOptions {
  // The ranks that train together; default_group() when empty.
  std::shared_ptr<ProcessGroup> group{};
  // Steps from one comparison to the next.
  std::int64_t every = 100;
  // Whether buffers are compared too: those that ranks hold alike between
  // steps, as a SyncBatchNorm's.
  bool buffers = false;
};

class RunningFingerprint {
 public:
  explicit RunningFingerprint(std::shared_ptr<const torch::nn::Module> module,
                              const RunningFingerprintOptions& options = {});

  // To be called after each step of the optimizer; compares when it is time.
  void step_done();

  // Compares now.
  void check();

  // How many steps there were; to be set by whoever goes on from a checkpoint.
  std::int64_t step() const { return step_; }
  void set_step(std::int64_t step) { step_ = step; }

  // What the last comparison found, for a program that wants more than the
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

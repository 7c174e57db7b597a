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

#include <ATen/core/Tensor.h>
#include <torch/nn/module.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "lockstep/comm/process_group.h"

namespace lockstep {

using NamedTensorList = std::vector<std::pair<std::string, at::Tensor>>;

// The first tensor that differs.
struct ReplicaDifference {
  std::string tensor;             // its name
  std::int64_t more_tensors = 0;  // that also differ
  // The ranks that differ from the majority; without a majority, from rank 0.
  std::vector<int> ranks;
  bool ranks_are_fewer = false;  // than half: they are probably wrong
  // False where ranks have different shapes, or some have no tensor; then the
  // members below are not set.
  bool comparable = false;
  std::int64_t elements = 0;          // that differ on some rank
  std::int64_t first_element = 0;     // of them, in the order of a dense tensor
  std::vector<std::int64_t> index{};  // the same element, by dimensions
  std::vector<double> values{};       // of that element, by rank
  int differing_bits = 0;             // of that element
  double largest = 0;  // difference of an element; NaN where one is
};

// Empty if all ranks hold the same bits in all of `tensors`. Every rank of the
// group calls it at the same point of its program, with the same number of
// tensors under the same names.
std::optional<ReplicaDifference> find_difference(
    ProcessGroup& group, const NamedTensorList& tensors);

// `weight[3, 17] is 0.25 on rank 1 and 0.5 on ranks 0 and 2; 1 element of the
// tensor differs, by at most 0.25`, in one line.
std::string describe(const ReplicaDifference& difference);

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

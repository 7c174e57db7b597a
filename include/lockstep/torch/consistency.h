// Whether the ranks' replicas are the same: checks of the first steps and of a
// whole run.
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

// Watches the first steps of a training loop and reports what is equal on all
// ranks and what differs: weights, data, outputs, loss, gradients before and
// after reduction, buffers, random numbers. Each of them is expected to be
// equal or to differ; where the ranks do not meet the expectation, the report
// names the first parameter, the ranks, the largest difference and the likely
// cause.
//
//     lockstep::ConsistencyReport report(model.module(), {.steps = 3});
//     for (…) {
//       report.data(input);
//       output = model(input);      report.outputs(output);
//       loss = loss_of(output, …);  report.loss(loss);
//       loss.backward();            report.gradients();
//       optimizer.step();           report.step_done();
//       if (group->rank() == 0) std::cout << report.take_text();
//     }
//
// A quantity that the program does not pass to it has no row. After `steps`
// steps its calls do nothing. It hashes everything once per step; ranks
// exchange elements only where hashes are wrong.
//
// Threads: single-threaded. Every rank makes it, before or after the model is
//          wrapped, and calls gradients() and step_done() at the same points:
//          both communicate.
// Errors:  InvalidArgument for options that cannot work. Those of
//          ProcessGroup's operations. Inconsistent ranks are not an error: the
//          report tells of them.
// See docs/guides/consistency.md.

// How a quantity must compare across ranks: equal, all different, or either.
enum class Expected { kEqual, kDifferent, kEither };

struct ConsistencyRow {
  std::int64_t step = 0;  // from 1; 0 is before the first
  std::string what;
  Expected must = Expected::kEither;
  // "equal", "different", or in groups: "equal on ranks 0 and 2".
  std::string found;
  bool right = true;
};

// About the first wrong row.
struct ConsistencyVerdict {
  std::int64_t step = 0;
  std::string what;
  std::string where;   // parameter, ranks, largest difference
  std::string likely;  // the cause
  std::string next;    // what to do
};

struct ConsistencyReportOptions {
  // The ranks that train together; default_group() when empty.
  std::shared_ptr<ProcessGroup> group{};
  // The number of steps to watch.
  int steps = 3;
  // Of parameters and buffers. A report that is made before the module is
  // wrapped sets kEither: the ranks' weights may differ then, and step 1
  // compares them after wrapping. kDifferent is invalid.
  Expected initial_weights = Expected::kEqual;
  // Other expectations, for example of ranks that share their data, or of an
  // optimizer that averages gradients itself.
  Expected data = Expected::kDifferent;
  Expected reduced_gradients = Expected::kEqual;
  // Names of parameters to show the first values of, and of their gradients.
  std::vector<std::string> show{};
  std::int64_t show_elements = 3;
};

class ConsistencyReport {
 public:
  // Compares weights and buffers as they are now.
  explicit ConsistencyReport(std::shared_ptr<const torch::nn::Module> module,
                             const ConsistencyReportOptions& options = {});
  ~ConsistencyReport();

  // Call these in the order of the step; several times where a step has
  // several.
  void data(const at::Tensor& input);
  void outputs(const at::Tensor& output);
  void loss(const at::Tensor& loss);
  // Call it when all passes of the step are done, before clipping gradients.
  void gradients();
  void step_done();

  bool done() const;
  bool consistent() const { return !verdict(); }
  const std::optional<ConsistencyVerdict>& verdict() const;
  const std::vector<ConsistencyRow>& rows() const;

  // Returns the table of all steps at the end; at the first wrong row, the
  // table so far with the verdict; after each step, the values to show. Returns
  // each text once. The same on every rank.
  std::string take_text();

 private:
  class Watch;
  std::unique_ptr<Watch> watch_;
};

}  // namespace lockstep

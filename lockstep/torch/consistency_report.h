// Watches the first steps of a training loop, and tells what the ranks have in
// common and what not: weights, data, outputs, loss, gradients before and after
// they were reduced, buffers, random numbers. Each must be the same on all
// ranks, or differ; where it is the other way round, the report names the first
// parameter, the ranks, the largest difference and the likely cause.
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
// What is not told to it has no row. After the steps that it was made for its
// calls do nothing. It costs a hash of everything a step; only where hashes are
// wrong do elements travel.
//
// Threads: single-threaded. Every rank makes it, before or after the model is
//          wrapped, and calls gradients() and step_done() at the same points:
//          these exchange.
// Errors:  InvalidArgument for options that cannot work. What ProcessGroup's
//          operations throw. That ranks are not consistent is no error but in
//          the report.
// See docs/guides/consistency.md.
#pragma once

#include <torch/nn/module.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "lockstep/comm/process_group.h"
#include "lockstep/torch/consistency_table.h"
#include "lockstep/torch/own_gradients.h"
#include "lockstep/torch/replica_difference.h"

namespace lockstep {

struct ConsistencyReportOptions {
  // The ranks that train together; default_group() when empty.
  std::shared_ptr<ProcessGroup> group{};
  // Steps that are watched.
  int steps = 3;
  // Of parameters and buffers. A report that is made before the module is
  // wrapped says kEither: the ranks' may differ then, and step 1 compares what
  // wrapping made of the weights. Not kDifferent.
  Expected initial_weights = Expected::kEqual;
  // What must be, where a program means something else: ranks that share their
  // data, or an optimizer that averages gradients itself.
  Expected data = Expected::kDifferent;
  Expected reduced_gradients = Expected::kEqual;
  // Names of parameters whose first values, and whose gradients', are shown.
  std::vector<std::string> show{};
  std::int64_t show_elements = 3;
};

class ConsistencyReport {
 public:
  // Compares weights and buffers as they are now.
  explicit ConsistencyReport(std::shared_ptr<const torch::nn::Module> module,
                             const ConsistencyReportOptions& options = {});

  // In the order in which a step has them; where a step has several, as often.
  void data(const at::Tensor& input);
  void outputs(const at::Tensor& output);
  void loss(const at::Tensor& loss);
  // Once all passes of the step are done, before gradients are clipped.
  void gradients();
  void step_done();

  bool done() const { return step_ > options_.steps; }
  bool consistent() const { return !verdict_; }
  const std::optional<ConsistencyVerdict>& verdict() const { return verdict_; }
  const std::vector<ConsistencyRow>& rows() const { return rows_; }

  // The table of all steps at the end, and of those so far where something is
  // wrong first, with the verdict; the values to show, after each step. Each
  // once. The same on every rank.
  std::string take_text();

 private:
  bool add(std::string what, Expected must,
           const std::vector<Fingerprint>& by_rank);
  void accuse(const std::string& where, const std::string& likely,
              const std::string& next);
  // A Fingerprint that says yes or no, of every rank.
  std::vector<int> ranks_that(bool own);

  void compare_start();
  void compare_pass();
  void compare_wrapped();
  void compare_weights();
  void compare_buffers();
  void compare_random_numbers();
  void explain_gradients(const ReplicaDifference& difference);
  // `unchanged`: the ranks on which the step changed nothing.
  void explain_weights(const ReplicaDifference& difference,
                       const std::vector<int>& unchanged);
  void keep_heads_of_gradients();
  std::string shown_values();
  std::string note_on_wrapping() const;
  void end_step();

  std::shared_ptr<const torch::nn::Module> module_;
  std::shared_ptr<ProcessGroup> group_;
  ConsistencyReportOptions options_;
  std::int64_t step_ = 0;    // that is watched now; 0 before the first
  NamedTensorList trained_;  // parameters that require a gradient
  std::optional<OwnGradients> own_gradients_;

  // Of this step; nothing where nothing was told.
  Fingerprint data_, outputs_, loss_;
  bool pass_compared_ = false;
  std::vector<at::Tensor> reduced_heads_;  // of shown parameters' gradients

  Fingerprint weights_;  // this rank's, before the step
  bool weights_were_equal_ = true;
  bool began_apart_ = false;          // initial weights differed
  std::vector<Fingerprint> buffers_;  // likewise, one by one

  std::vector<ConsistencyRow> rows_;
  std::optional<ConsistencyVerdict> verdict_;
  std::string text_;
};

}  // namespace lockstep

// Inside of a ConsistencyReport: it measures, on all ranks alike, and keeps the
// rows and the verdict. consistency_causes.h has the words, and
// consistency_table.h the table.
//
// Threads: single-threaded.
// Errors:  those of ConsistencyReport.
#pragma once

#include <ATen/core/Tensor.h>
#include <torch/nn/module.h>

#include <cstdint>
#include <iterator>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "lockstep/comm/process_group.h"
#include "lockstep/torch/consistency.h"
#include "src/torch/compare/fingerprint.h"
#include "src/torch/verify/consistency_causes.h"
#include "src/torch/verify/gradient_fingerprints.h"

namespace lockstep {

class ConsistencyReport::Watch {
 public:
  Watch(std::shared_ptr<const torch::nn::Module> module,
        const ConsistencyReportOptions& options);

  void data(const at::Tensor& input);
  void outputs(const at::Tensor& output);
  void loss(const at::Tensor& loss);
  void gradients();
  void step_done();

  bool done() const { return step_ > options_.steps; }
  const std::optional<ConsistencyVerdict>& verdict() const { return verdict_; }
  const std::vector<ConsistencyRow>& rows() const { return rows_; }
  std::string take_text() { return std::exchange(text_, ""); }

 private:
  // The hashes of this rank that are compared with the others'.
  struct OwnHashes {
    std::optional<GradientFingerprints> gradients{};
    // Of this step; zero if the program passed nothing.
    Fingerprint data{}, outputs{}, loss{};
    bool outputs_are_finite = true;
    bool loss_is_finite = true;
    // Before the step; of buffers one each.
    Fingerprint weights{};
    std::vector<Fingerprint> buffers{};
  };

  bool add(std::string what, Expected must,
           const std::vector<Fingerprint>& by_rank);
  void accuse(const ConsistencyCause& cause);
  // As accuse(), of values that are equal. If they are not finite on some rank,
  // the cause is that training has diverged. A collective.
  void accuse_of_equal(const ConsistencyCause& cause, bool own_are_finite);
  // The ranks on which `own` is true. A collective.
  std::vector<int> ranks_that(bool own);
  // Whether it is true on all.
  bool everywhere(bool own) {
    return std::ssize(ranks_that(own)) == group_->size();
  }

  void compare_start();
  void compare_pass();
  void compare_wrapped();
  void compare_weights();
  void compare_buffers();
  void compare_random_numbers();
  Unreduced find_unreduced(const ReplicaDifference& difference);
  void keep_heads_of_gradients();
  std::string shown_values();
  std::string note_on_wrapping() const;
  void end_step();

  std::shared_ptr<const torch::nn::Module> module_;
  std::shared_ptr<ProcessGroup> group_;
  ConsistencyReportOptions options_;
  std::int64_t step_ = 0;    // the current one; 0 before the first
  NamedTensorList trained_;  // parameters that require a gradient
  OwnHashes own_;
  bool pass_compared_ = false;  // data, outputs and loss of this step
  std::vector<at::Tensor> reduced_heads_;  // of shown parameters' gradients

  bool weights_were_equal_ = true;
  bool began_apart_ = false;  // initial weights differed

  std::vector<ConsistencyRow> rows_;
  std::optional<ConsistencyVerdict> verdict_;
  std::string text_;
};

}  // namespace lockstep

// The gradients that a backward pass must produce, and what a missing or
// repeated gradient means.
//
// There are three rules: every parameter's gradient arrives once; or any
// gradient may be missing; or all arrive as in the first pass, which the
// reducer learns and then relies on. By the third rule each rank has its own
// counts, while all ranks agree on the parameters that no rank uses.
//
// Threads: single-threaded, like the reducer that owns it.
// Errors:  none.
#pragma once

#include <cstddef>
#include <vector>

#include "src/planning/gradient_tracker.h"

namespace lockstep {

class PassExpectation {
 public:
  enum class Rule {
    kEveryGradient,
    kAnyGradient,  // find_unused_parameters
    kAsAtFirst,    // static_graph
  };
  using Indices = std::vector<std::size_t>;

  PassExpectation(Rule rule, std::size_t parameters);

  Rule rule() const { return rule_; }

  // How often each gradient arrives in this rank's next pass.
  const GradientTracker::Counts& counts() const { return counts_; }

  // The parameters that no pass of this rank uses.
  const Indices& never_here() const { return never_here_; }

  // Records a gradient of a local pass. It counts once end_local_pass() is
  // called; when the pass throws, drop_local_pass() forgets its gradients.
  void arrived_in_local_pass(std::size_t parameter) {
    arriving_locally_.push_back(parameter);
  }
  void end_local_pass();
  void drop_local_pass() { arriving_locally_.clear(); }

  // Whether a local pass since the last reduced pass has produced a gradient of
  // `parameter`.
  bool has_local_gradient(std::size_t parameter) const {
    return arrived_locally_[parameter] != 0;
  }

  // Whether a gradient of `parameter` may arrive; `status` is the tracker's
  // answer.
  bool allows(std::size_t parameter, GradientTracker::Status status) const;

  // Those of `missing` that this rank must report to the others. It does not
  // report a parameter that has a gradient from a local pass, and reports none
  // while it alone still learns its counts.
  Indices worth_telling(Indices missing) const;

  // Whether a pass is valid in which a gradient is missing on some rank.
  bool allows_missing() const {
    return rule_ == Rule::kAnyGradient || learns_with_all();
  }

  // Sets the parameters that no rank used in this pass, when a rank reported a
  // missing gradient.
  void set_unused(std::vector<char> unused) { unused_ = std::move(unused); }
  bool unused(std::size_t parameter) const { return unused_[parameter] != 0; }

  // Ends the pass on all ranks. `counts` are this rank's arrivals; null when it
  // had no data.
  void end_pass(const GradientTracker::Counts* counts);

  // The pass has failed on all ranks: its gradients, and those of earlier local
  // passes, are invalid.
  void drop_gradients();

 private:
  bool learns_with_all() const {
    return rule_ == Rule::kAsAtFirst && !others_know_;
  }
  bool learns() const { return rule_ == Rule::kAsAtFirst && !this_rank_knows_; }

  Rule rule_;
  GradientTracker::Counts counts_;
  Indices never_here_;
  std::vector<char> arrived_locally_;  // since the last pass; by parameter
  Indices arriving_locally_;           // in the present pass, which is local
  std::vector<char> unused_;           // by any rank; by parameter
  bool this_rank_knows_ = false;
  bool others_know_ = false;
};

}  // namespace lockstep

// Which gradients a backward pass is to bring, and what it means if one is
// missing or comes too often.
//
// Three rules: every parameter's gradient comes once; or any may stay away; or
// all come as in the first pass, which is learnt and then relied on. By the
// third rule each rank has counts of its own, while what no rank uses is agreed
// on by all.
//
// Threads: single-threaded, as the reducer that owns it.
// Errors:  none.
#pragma once

#include <cstddef>
#include <vector>

#include "lockstep/ddp/gradient_tracker.h"

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

  // How often gradients come in the next pass of this rank.
  const GradientTracker::Counts& counts() const { return counts_; }

  // The parameters that no pass of this rank uses.
  const Indices& never_here() const { return never_here_; }

  // Takes note of a gradient that stays on this rank for now. It counts once
  // end_local_pass() has said that the pass came to its end; where that threw,
  // drop_local_pass() forgets what it brought.
  void arrived_in_local_pass(std::size_t parameter) {
    arriving_locally_.push_back(parameter);
  }
  void end_local_pass();
  void drop_local_pass() { arriving_locally_.clear(); }

  // Whether local passes since the last one that was reduced have brought one.
  bool has_local_gradient(std::size_t parameter) const {
    return arrived_locally_[parameter] != 0;
  }

  // Whether a gradient of `parameter` may come; `status` is what the tracker
  // says to it.
  bool allows(std::size_t parameter, GradientTracker::Status status) const;

  // Those of `missing` whose absence the other ranks must hear of: not those
  // that have a gradient from a local pass, nor those of a rank that learns
  // alone what it uses.
  Indices worth_telling(Indices missing) const;

  // Whether a pass in which some gradient is missing somewhere is one.
  bool allows_missing() const {
    return rule_ == Rule::kAnyGradient || learns_with_all();
  }

  // What no rank used in this pass: if some rank told of something missing.
  void set_unused(std::vector<char> unused) { unused_ = std::move(unused); }
  bool unused(std::size_t parameter) const { return unused_[parameter] != 0; }

  // The pass is over for all. `counts` is what this rank saw of it; null when
  // it had no data.
  void end_pass(const GradientTracker::Counts* counts);

  // The pass has failed on all ranks alike: its gradients, and those of local
  // passes before it, are of no use.
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

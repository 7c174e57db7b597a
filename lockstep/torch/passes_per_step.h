// Reduces the last of the backward passes before each step of an optimizer; the
// ones before it add to .grad on their own rank.
//
// Threads: single-threaded, backward passes included. It may be moved between
//          passes.
// Errors:  as Reducer; InvalidArgument from the backward pass that is one more
//          than a step takes, and from what comes after it until begin_anew().
#pragma once

#include <memory>
#include <vector>

#include "lockstep/comm/process_group.h"
#include "lockstep/torch/reducer.h"

namespace lockstep {

class PassesPerStep {
 public:
  // `passes`: at least 1, the same on every rank.
  PassesPerStep(std::vector<NamedParameter> parameters,
                const std::shared_ptr<ProcessGroup>& group,
                const ReducerOptions& options, int passes);

  Reducer& reducer() { return reducer_; }

  // Makes .grad what the step is to read, if the passes so far have not: where
  // there were fewer than a step takes, or none on this rank.
  void synchronize();
  bool are_synchronized() const {
    return alone_ || passes_->done == passes_->in_step;
  }

  // A step was made, or gradients were dropped: passes count anew.
  void begin_anew() {
    passes_->done = 0;
    passes_->refused_one = false;
  }

 private:
  struct Passes {
    int in_step;
    int done = 0;
    bool refused_one = false;  // which has added to .grad
  };

  std::shared_ptr<Passes> passes_;  // with the rule that counts them
  Reducer reducer_;
  bool alone_;
};

}  // namespace lockstep

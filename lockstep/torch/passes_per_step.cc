#include "lockstep/torch/passes_per_step.h"

#include <string>
#include <utility>

#include "lockstep/base/error.h"

namespace lockstep {
namespace {

int checked(int passes) {
  if (passes < 1)
    throw InvalidArgument("a step cannot take " + std::to_string(passes) +
                          " backward passes; the least is 1");
  return passes;
}

}  // namespace

PassesPerStep::PassesPerStep(std::vector<NamedParameter> parameters,
                             const std::shared_ptr<ProcessGroup>& group,
                             const ReducerOptions& options, int passes)
    : passes_(std::make_shared<Passes>(Passes{checked(passes)})),
      reducer_(std::move(parameters), group, options),
      alone_(group->size() == 1) {
  reducer_.decide_passes_by([state = passes_] {
    if (state->done == state->in_step) {
      state->refused_one = true;
      throw InvalidArgument(
          "a backward pass more than the " + std::to_string(state->in_step) +
          " that a step takes: the gradients of those are reduced already\n"
          "  next:    call step() or zero_grad() before it, or raise "
          "backward_passes_per_step");
    }
    return ++state->done == state->in_step ? PassKind::kReduced
                                           : PassKind::kLocal;
  });
}

void PassesPerStep::synchronize() {
  if (passes_->refused_one)
    throw InvalidArgument(
        "gradients hold part of a backward pass that was refused\n"
        "  next:    call zero_grad() and make the passes of this step again");
  if (are_synchronized()) return;
  reducer_.reduce_now();
  passes_->done = passes_->in_step;
}

}  // namespace lockstep

#include "src/torch/frontends/strategies/central_step.h"

#include "src/torch/ddp/replicate.h"

namespace lockstep {

void step_centrally(ProcessGroup& replicas, at::TensorList variables,
                    const std::function<void()>& step) {
  const bool are_shared = variables.empty() || variables[0].is_cpu();
  if (are_shared) replicas.barrier({.label = "before the step"}).wait();
  if (replicas.rank() == 0) step();
  if (are_shared)
    replicas.barrier({.label = "after the step"}).wait();
  else
    broadcast_tensors(replicas, variables, 0);
}

}  // namespace lockstep

// Optimizer updates of parameters on a GPU, by LibTorch's multi-tensor kernels,
// which update all parameters of one kind at once.
//
// Threads: any; the work goes to each device's current stream.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstddef>
#include <span>
#include <vector>

#include "src/planning/update_kernels.h"
#include "src/torch/optim/update_state.h"

namespace lockstep {

// One step of one parameter.
struct DeviceUpdate {
  std::size_t rule = 0;  // index into `rules`
  at::Tensor parameter{};
  at::Tensor gradient{};  // of the parameter's type and strides
  UpdateState state{};    // for this step, of the parameter's type and strides
};

// Makes all of `updates`, with gradients times `gradient_scale`. A scale other
// than 1 costs a pass over the gradients, which stay unchanged.
void update_on_devices(std::span<const UpdateRule> rules,
                       std::span<const DeviceUpdate> updates,
                       double gradient_scale);

}  // namespace lockstep

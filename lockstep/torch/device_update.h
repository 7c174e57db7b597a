// The update kernels' work where parameters are on a GPU: by LibTorch's
// multi-tensor kernels, which take all parameters of one kind at once.
//
// Threads: a function of its arguments; on each device's current stream.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstddef>
#include <span>
#include <vector>

#include "lockstep/ddp/update_kernels.h"
#include "lockstep/torch/update_state.h"

namespace lockstep {

// One step of a parameter.
struct DeviceUpdate {
  std::size_t rule = 0;  // its number
  at::Tensor parameter{};
  at::Tensor gradient{};  // of the parameter's type and strides
  UpdateState state{};    // for this step, of the parameter's type and strides
};

// Makes all of `updates`. What gradients are multiplied with costs a pass over
// them when it is not 1; they stay as they are.
void update_on_devices(std::span<const UpdateRule> rules,
                       std::span<const DeviceUpdate> updates,
                       double gradient_scale);

}  // namespace lockstep

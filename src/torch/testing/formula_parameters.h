// Parameters and gradients from formulas, for the tests of optimizers: the same
// on every rank, and in every world.
#pragma once

#include <torch/types.h>

#include <vector>

#include "src/torch/testing/small_nets.h"

namespace lockstep {

// Parameters of many shapes: an empty one, a scalar, one whose memory is not in
// the order of its dimensions, and one larger than all others together.
inline std::vector<at::Tensor> formula_parameters(
    at::ScalarType type = at::kFloat) {
  const std::vector<std::vector<std::int64_t>> shapes{
      {3, 4}, {7}, {0}, {}, {2, 3, 4, 5}, {50, 40}, {33}};
  std::vector<at::Tensor> parameters;
  for (const auto& shape : shapes) {
    at::Tensor tensor =
        wave(shape, static_cast<double>(parameters.size())).to(type);
    if (tensor.dim() == 4)
      tensor = tensor.contiguous(at::MemoryFormat::ChannelsLast);
    parameters.push_back(tensor.requires_grad_(true));
  }
  return parameters;
}

// Gives every parameter the gradients of step `step`.
inline void set_gradients(const std::vector<at::Tensor>& parameters, int step) {
  double phase = 10 * step;
  for (at::Tensor parameter : parameters) {
    const at::Tensor gradient =
        (wave(parameter.sizes(), ++phase) * 0.5).to(parameter.scalar_type());
    parameter.mutable_grad() = gradient.to(parameter.options());
  }
}

inline void train_by_formula(torch::optim::Optimizer& optimizer, int first_step,
                             int last_step) {
  for (int step = first_step; step <= last_step; ++step) {
    for (const auto& group : optimizer.param_groups())
      set_gradients(group.params(), step);
    optimizer.step();
  }
}

inline std::vector<at::Tensor> copies_of(
    const std::vector<at::Tensor>& tensors) {
  std::vector<at::Tensor> copies;
  for (const at::Tensor& tensor : tensors)
    copies.push_back(tensor.detach().clone());
  return copies;
}

// Whether two lists have the same bits.
inline bool are_equal(const std::vector<at::Tensor>& a,
                      const std::vector<at::Tensor>& b) {
  bool equal = a.size() == b.size();
  for (std::size_t i = 0; equal && i < a.size(); ++i)
    equal = a[i].detach().equal(b[i].detach());
  return equal;
}

}  // namespace lockstep

// A module's parameters as one row of elements, in the order of their names.
#pragma once

#include <torch/nn/module.h>
#include <torch/types.h>

#include <vector>

namespace lockstep {

inline at::Tensor flat_parameters(const torch::nn::Module& module) {
  std::vector<at::Tensor> flat;
  for (const at::Tensor& parameter : module.parameters())
    flat.push_back(parameter.detach().flatten());
  return torch::cat(flat);
}

// Copies such a row into the parameters of `module`.
inline void set_flat_parameters(const torch::nn::Module& module,
                                const at::Tensor& flat) {
  const torch::NoGradGuard no_grad;
  std::int64_t at = 0;
  for (at::Tensor& parameter : module.parameters()) {
    parameter.copy_(
        flat.narrow(0, at, parameter.numel()).view(parameter.sizes()));
    at += parameter.numel();
  }
}

}  // namespace lockstep

// The random initial weights of PyTorch's layers, from a given generator.
#pragma once

#include <ATen/core/Generator.h>
#include <ATen/core/Tensor.h>

namespace lockstep {

// As reset_parameters() of Linear and of convolutions; `bias` may be undefined.
// Order and arithmetic are PyTorch's, so the bits are too.
void reset_parameters(at::Tensor weight, at::Tensor bias,
                      const at::Generator& generator);

// As torch.nn.init.kaiming_normal_ with mode="fan_out", nonlinearity="relu",
// for the weight of a convolution.
void kaiming_normal_fan_out(at::Tensor weight, const at::Generator& generator);

}  // namespace lockstep

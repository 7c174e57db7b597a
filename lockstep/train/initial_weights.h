// What PyTorch's layers draw their first weights from, on a generator of one's
// own.
//
// Threads: functions of their arguments.
#pragma once

#include <ATen/core/Generator.h>
#include <ATen/core/Tensor.h>

namespace lockstep {

// As reset_parameters() of Linear and of convolutions; `bias` may be undefined.
// The order and the arithmetic are PyTorch's, hence also the bits.
void reset_parameters(at::Tensor weight, at::Tensor bias,
                      const at::Generator& generator);

// As torch.nn.init.kaiming_normal_ with mode="fan_out", nonlinearity="relu",
// for the weight of a convolution.
void kaiming_normal_fan_out(at::Tensor weight, const at::Generator& generator);

}  // namespace lockstep

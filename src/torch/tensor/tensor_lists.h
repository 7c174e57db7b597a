// Sorts tensors into lists that one operation can take, and counts their bytes.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstddef>
#include <vector>

namespace lockstep {

// One list per device and type, in which tensors keep their order. If tensors
// are on the CPU and one other device, the lists have the same order on every
// rank with the same tensors, whatever that device's index is.
std::vector<std::vector<at::Tensor>> by_device_and_type(at::TensorList tensors);

// The bytes of all elements; an undefined tensor has 0.
std::size_t bytes_of(at::TensorList tensors);

}  // namespace lockstep

// Lists of tensors: those that one operation can take, and their size.
//
// Threads: functions of their arguments.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstddef>
#include <vector>

namespace lockstep {

// A list for each device and type, in which tensors keep their order. Where
// tensors are on the CPU and one other device, the lists come in the same order
// on every rank that has the same tensors, whatever that device's number.
std::vector<std::vector<at::Tensor>> by_device_and_type(at::TensorList tensors);

// The bytes of all elements; an undefined tensor has none.
std::size_t bytes_of(at::TensorList tensors);

}  // namespace lockstep

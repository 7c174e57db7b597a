// Why an operation cannot take a tensor of the user's, and what the user can
// do: the one account of it for collectives, the wrapper, Horovod and
// strategies, which add the name of the tensor.
//
// Threads: any thread.
// Errors:  none.
#pragma once

#include <ATen/core/Tensor.h>

#include <optional>
#include <string>

namespace lockstep {

// For "TENSOR WHY\n  next:    NEXT".
struct TensorFault {
  std::string why;  // "is sparse"
  std::string next;
};

// Nothing if ranks can exchange the elements of `tensor`, of any type.
std::optional<TensorFault> fault_of_moved(const at::Tensor& tensor);
// Nothing if collectives can also compute with the elements, which are of
// `type` while they do: the tensor's own type, or that of its gradient.
std::optional<TensorFault> fault_of_reduced(const at::Tensor& tensor,
                                            at::ScalarType type);
// Nothing if other ranks can write the elements of `tensor`, of which
// fault_of_moved() finds no fault.
std::optional<TensorFault> fault_of_written(const at::Tensor& tensor);

// Collectives do not compute with `type`.
TensorFault fault_of_type(at::ScalarType type);

}  // namespace lockstep

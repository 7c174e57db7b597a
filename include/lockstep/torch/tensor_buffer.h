// LibTorch's tensors as the Buffers that collectives work on.
//
//     group->all_reduce(lockstep::view(tensor), ReduceOp::kAverage).wait();
//
// A Buffer borrows the tensor's memory: the tensor must stay alive, and must
// not be resized, until the Work of the operation is done.
//
// Errors:  InvalidArgument for tensors that collectives cannot work on: sparse,
//          not contiguous, on an unsupported device or of an unsupported type.
//          The message says how to get a suitable tensor.
#pragma once

#include <ATen/core/Tensor.h>

#include <vector>

#include "lockstep/comm/buffer.h"

namespace lockstep {

// The DataType of `type`'s elements; InvalidArgument for those that training
// does not use, such as complex numbers.
DataType data_type_of(at::ScalarType type);

// The reverse.
at::ScalarType scalar_type_of(DataType type);

// The device of a tensor's memory: the CPU or a GPU. From the first call for a
// GPU on, operations are ordered in LibTorch's current stream there.
Device buffer_device(const at::Tensor& tensor);

// The elements of a contiguous tensor. Tensors share their memory freely, so
// constness does not protect the elements.
Buffer view(const at::Tensor& tensor);

// A list of tensors as the buffers of one operation; they must have one type.
std::vector<Buffer> views(at::TensorList tensors);

}  // namespace lockstep

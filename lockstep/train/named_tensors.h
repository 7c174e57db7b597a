// Tensors by name: what a module or a file consists of.
//
// Threads: functions of their arguments; a module must not be trained
//          meanwhile.
// Errors:  InvalidArgument naming the tensor.
#pragma once

#include <ATen/core/Tensor.h>
#include <torch/nn/module.h>

#include <map>
#include <string>
#include <string_view>

#include "lockstep/train/safetensors.h"

namespace lockstep {

using NamedTensors = std::map<std::string, at::Tensor>;

// The module's parameters and buffers, not copies, under the names of
// named_parameters() and named_buffers().
NamedTensors tensors_of(const torch::nn::Module& module);

// The type that files have for elements of this type, and back. InvalidArgument
// for a type that they do not have.
SafetensorsType stored_type_of(at::ScalarType type);
at::ScalarType scalar_type_of(SafetensorsType type);

// Throws where `tensor` is memory that the process from which this one was
// forked may be writing to: no two of its elements need be of one moment.
void check_not_parents(const std::string& name, const at::Tensor& tensor);

// `tensor` as dense rows on the CPU, copied only where it is not so already.
// InvalidArgument for a type that files of tensors do not hold, and where
// check_not_parents() throws.
at::Tensor storable(const std::string& name, const at::Tensor& tensor);

// Those of `tensors` whose names begin with `prefix`, without it.
NamedTensors part_of(const NamedTensors& tensors, std::string_view prefix);

// Adds `part` to `tensors` with `prefix` before each name.
void add_part(NamedTensors& tensors, const std::string& prefix,
              const NamedTensors& part);

// A line for each way in which what is stored in a file does not fit `ours`, of
// a model: names, shapes, types. Empty when there is none.
std::string differences(const NamedTensors& ours, const NamedTensors& stored);

// Copies the elements of `stored` over those of `ours`, which stay where they
// are. There must be no differences.
void copy_over(const NamedTensors& ours, const NamedTensors& stored);

}  // namespace lockstep

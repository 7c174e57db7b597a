// Tensors by name: the contents of a module or a file.
//
// Threads: a module must not be trained during a call.
// Errors:  InvalidArgument naming the tensor.
#pragma once

#include <ATen/core/Tensor.h>
#include <torch/nn/module.h>

#include <map>
#include <string>
#include <string_view>

#include "src/checkpoint/safetensors.h"

namespace lockstep {

using NamedTensors = std::map<std::string, at::Tensor>;

// The module's parameters and buffers, not copies, under the names of
// named_parameters() and named_buffers(). InvalidArgument where a parameter and
// a buffer have the same name.
NamedTensors tensors_of(const torch::nn::Module& module);

// The file type for elements of this type, and back. InvalidArgument for a type
// without a counterpart.
SafetensorsType stored_type_of(at::ScalarType type);
at::ScalarType scalar_type_of(SafetensorsType type);

// Throws if the parent process may write to the memory of `tensor` after a
// fork: its elements might not be from the same moment.
void check_not_parents(const std::string& name, const at::Tensor& tensor);

// Throws for a tensor that files cannot hold: sparse, on the device `meta`, of
// a type without a counterpart, or with a name that is not UTF-8; and where
// check_not_parents() throws.
void check_storable(const std::string& name, const at::Tensor& tensor);

// `tensor` as dense rows on the CPU, copied only if necessary. Throws where
// check_storable() does.
at::Tensor storable(const std::string& name, const at::Tensor& tensor);

// The tensors whose names begin with `prefix`, without the prefix.
NamedTensors part_of(const NamedTensors& tensors, std::string_view prefix);

// Adds `part` to `tensors` with `prefix` before each name, all of them new.
void add_part(NamedTensors& tensors, const std::string& prefix,
              const NamedTensors& part);

// `stored` as PyTorch's load_state_dict(strict=True) fits it to a model's
// tensors, `ours`:
// - another type is converted, unless that would lose an imaginary part, a
//   fraction or the size of a number;
// - a single number may have the shape [1] or [];
// - a tied weight may be stored once, under any of its names;
// - a batch normalization without num_batches_tracked keeps its own.
NamedTensors fitted(const NamedTensors& ours, NamedTensors stored);

// One line per difference between a file's tensors, `stored`, and a model's,
// `ours`: names, shapes, types; and one for each tensor of ours that cannot be
// written to. Empty if they fit.
std::string differences(const NamedTensors& ours, const NamedTensors& stored);

// Copies the elements of `stored` over those of `ours`, which keep their
// memory. There must be no differences.
void copy_over(const NamedTensors& ours, const NamedTensors& stored);

}  // namespace lockstep

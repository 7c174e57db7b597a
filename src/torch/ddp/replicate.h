// Makes every rank's model the same: checks that they have the same shape, and
// copies one rank's contents over the others'.
//
// Threads: called by every rank of the group, like the collectives inside.
// Errors:  Mismatch on every rank when models differ; those of ProcessGroup's
//          operations.
#pragma once

#include <torch/nn/module.h>
#include <torch/ordered_dict.h>

#include <string>
#include <vector>

#include "lockstep/comm/process_group.h"

namespace lockstep {

// Throws Mismatch, naming the first difference and the ranks, unless the
// modules of all ranks have the same parameters and buffers: names, types,
// shapes, strides, devices, and which require a gradient. `module` is only
// read.
void check_same_model(ProcessGroup& group, const torch::nn::Module& module);

// One line with the properties of a parameter that must be the same on all
// ranks for its gradients to be reduced: see check_same_text().
std::string description_of_parameter(const std::string& name,
                                     const at::Tensor& tensor);

// InvalidArgument naming two parameters of `module` that are on two devices.
void check_one_device(const torch::nn::Module& module);

// InvalidArgument naming the first parameter or buffer of `module` whose
// elements ranks cannot exchange: it is sparse, has none (meta), or has several
// in one place of its memory (unfold(); expand() is taken).
void check_dense(const torch::nn::Module& module);

// All tensors of a module that must be copied to make two modules equal. Tied
// weights are listed once.
std::vector<at::Tensor> parameters_and_buffers(const torch::nn::Module& module);

// The same by names, which tell parameters from buffers.
torch::OrderedDict<std::string, at::Tensor> named_parameters_and_buffers(
    const torch::nn::Module& module);

// Copies rank `root`'s elements over the tensors with the same names on the
// other ranks, in any order. Mismatch on every rank when names, types or shapes
// differ.
void broadcast_by_name(
    ProcessGroup& group,
    const torch::OrderedDict<std::string, at::Tensor>& tensors, int root);

// Copies rank `root`'s elements over every other rank's, with one operation per
// data type; any type is valid. Tensors that are not contiguous, or expanded,
// are staged.
// broadcast_even_alone() starts its operations in a group of one too.
void broadcast_tensors(ProcessGroup& group, at::TensorList tensors, int root);
void broadcast_even_alone(ProcessGroup& group, at::TensorList tensors,
                          int root);

// Replaces floating-point tensors by their averages over the ranks.
void average_tensors(ProcessGroup& group, at::TensorList tensors);

}  // namespace lockstep

// Makes every rank's model the same: checks that they have the same shape, and
// copies one rank's contents over the others'.
//
// Threads: called by every rank of the group, like the collectives inside.
// Errors:  Mismatch on every rank when models differ; what ProcessGroup's
//          operations throw.
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

// A line that says of a parameter what must be the same on all ranks for its
// gradients to be reduced: see check_same_text().
std::string description_of_parameter(const std::string& name,
                                     const at::Tensor& tensor);

// InvalidArgument naming two parameters of `module` that are on two devices.
void check_one_device(const torch::nn::Module& module);

// InvalidArgument naming the first parameter or buffer of `module` that is
// sparse.
void check_dense(const torch::nn::Module& module);

// All that makes up a module's contents: what to copy to make two the same.
// Tied weights are there once.
std::vector<at::Tensor> parameters_and_buffers(const torch::nn::Module& module);

// The same by names, which say which of the two a tensor is.
torch::OrderedDict<std::string, at::Tensor> named_parameters_and_buffers(
    const torch::nn::Module& module);

// Copies rank `root`'s elements over those of the tensors that have the same
// names on the other ranks, in whatever order. Mismatch on every rank when
// names, types or shapes differ.
void broadcast_by_name(
    ProcessGroup& group,
    const torch::OrderedDict<std::string, at::Tensor>& tensors, int root);

// Copies rank `root`'s elements over every other rank's, one operation a data
// type, of whatever type. Tensors need not be contiguous; those that are not
// are staged. The second starts its operations in a group of one too.
void broadcast_tensors(ProcessGroup& group, at::TensorList tensors, int root);
void broadcast_even_alone(ProcessGroup& group, at::TensorList tensors,
                          int root);

// The same with the average over the ranks, of floating-point tensors.
void average_tensors(ProcessGroup& group, at::TensorList tensors);

}  // namespace lockstep

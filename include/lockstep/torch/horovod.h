// Horovod's functions under Horovod's names, for programs that come from there:
//
//     namespace hvd = lockstep;
//
// See distributed_optimizer.h for what they stand around, and
// tensor_collectives.h for collectives.
//
// Threads: single-threaded; what takes a group is called by all of its ranks.
// Errors:  InvalidArgument before init(); what ProcessGroup's operations throw.
// Source:  horovod.torch.
#pragma once

#include <ATen/core/ivalue.h>
#include <torch/nn/module.h>
#include <torch/optim/optimizer.h>

#include <memory>
#include <vector>

#include "lockstep/comm/init.h"
#include "lockstep/comm/process_group.h"
#include "lockstep/torch/distributed_optimizer.h"

namespace lockstep {

// The default group's beginning and end. Where there is a default group already
// init() leaves it as it is, whatever `options` say.
void init(const InitOptions& options = {});
void shutdown();

// Of the default group.
int rank();
int size();
// This rank among those of its host, and how many those are, as the launcher
// has said; InvalidArgument where there are several ranks and it has not.
int local_rank();
int local_size();

// From now on ranks of `group` may join(), and every operation of this header
// and of DistributedOptimizer is announced to the other ranks before it begins,
// by a small all-gather, one for each reduced pass or call. Every rank calls
// this at the same point. Within one backward pass the ranks then reduce in one
// order, and DistributedDataParallel refuses to reduce in this group.
void allow_join(std::shared_ptr<ProcessGroup> group = {});

// To be called by a rank that has no data left, outside backward passes. Until
// every rank has called it, this rank takes part with zeros in the others'
// allreduce() and allreduce_() of sums and averages and in what their
// DistributedOptimizers reduce. Averages divide by the number of all ranks. Its
// own .grad is reset, and its parameters stay as they are: broadcast those of
// the rank that is returned. Optimizers stay alive meanwhile.
//
// Returns the last rank that joined; where several did after the same
// operation, the highest of those. Afterwards ranks may have data again.
//
// Errors: InvalidArgument on this rank where the group does not allow it. On
// every rank, in join() too, and none has joined any longer: InvalidArgument
// naming the ranks that had where another operation of this header is called or
// a DistributedOptimizer is made; Mismatch where ranks call different
// operations, or one of the group's own. Timeout where the other ranks call
// nothing for as long as the group's.
int join(std::shared_ptr<ProcessGroup> group = {});

// Gives every rank `root`'s values. Tensors are paired by their names, whatever
// their order on a rank; Mismatch on every rank where names, types or
// shapes differ. The group is default_group() when empty, here and below.
void broadcast_parameters(
    const torch::OrderedDict<std::string, at::Tensor>& parameters, int root = 0,
    std::shared_ptr<ProcessGroup> group = {});
// The same of a module's parameters and buffers.
void broadcast_parameters(const torch::nn::Module& module, int root = 0,
                          std::shared_ptr<ProcessGroup> group = {});

// A new tensor: all ranks' `tensor` combined. Whole numbers have no average of
// their type, which is an InvalidArgument.
//
// Autograd: where `tensor` requires a gradient, that of the result is combined
// by the same operation, so every rank runs the backward pass. Only a sum and
// an average have a gradient: that of another operation is an InvalidArgument.
at::Tensor allreduce(const at::Tensor& tensor, ReduceOp op = ReduceOp::kAverage,
                     std::shared_ptr<ProcessGroup> group = {});
// The same in place, as a change that autograd does not record; returns
// `tensor`.
// NOLINTNEXTLINE(readability-identifier-naming): torch's name
const at::Tensor& allreduce_(const at::Tensor& tensor,
                             ReduceOp op = ReduceOp::kAverage,
                             std::shared_ptr<ProcessGroup> group = {});

// A new tensor: all ranks' floating-point `tensor` combined two by two, in a
// tree over the ranks. Two that are orthogonal are added, two that are parallel
// averaged: a (1 - ab / 2aa) + b (1 - ab / 2bb). Of 1, 2, 4, 8, … ranks; others
// are an InvalidArgument. Rank 0 computes in float64 and needs memory for all
// ranks' tensors. It is no part of autograd's graph.
at::Tensor adasum(const at::Tensor& tensor,
                  std::shared_ptr<ProcessGroup> group = {});

// All ranks' tensors one after the other along the first dimension, of which
// each rank has a size of its own, maybe 0. Mismatch on every rank where types
// or other sizes differ; InvalidArgument for a tensor without a dimension.
//
// Autograd: the gradient of `tensor` is that of its rows of the result, added
// up over the ranks, so every rank runs the backward pass.
at::Tensor allgather(const at::Tensor& tensor,
                     std::shared_ptr<ProcessGroup> group = {});

// Gives every rank what rank `root`'s optimizer has: its options, such as the
// learning rate, and its state. They are of one class, of parameters of the
// same shapes in the same groups.
void broadcast_optimizer_state(torch::optim::Optimizer& optimizer, int root = 0,
                               std::shared_ptr<ProcessGroup> group = {});

// Rank `root`'s `object`: numbers, strings, tensors, lists and dictionaries of
// them. They travel as a pickle of LibTorch's, which is read without running
// code of its own; a view travels as its own elements alone. Elsewhere `object`
// does not matter.
c10::IValue broadcast_object(const c10::IValue& object, int root = 0,
                             std::shared_ptr<ProcessGroup> group = {});

// Every rank's `object`, in the order of ranks.
std::vector<c10::IValue> allgather_object(
    const c10::IValue& object, std::shared_ptr<ProcessGroup> group = {});

}  // namespace lockstep

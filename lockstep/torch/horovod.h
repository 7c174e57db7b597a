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

// The default group's beginning and end.
void init(const InitOptions& options = {});
void shutdown();

// Of the default group.
int rank();
int size();
// This rank among those of its host, and how many those are, as the launcher
// has said; InvalidArgument where there are several ranks and it has not.
int local_rank();
int local_size();

// Gives every rank `root`'s values. Tensors are paired by their names, whatever
// their order on a rank; Mismatch on every rank where names, types or shapes
// differ. The group is default_group() when empty.
void broadcast_parameters(
    const torch::OrderedDict<std::string, at::Tensor>& parameters, int root = 0,
    std::shared_ptr<ProcessGroup> group = {});
// The same of a module's parameters and buffers.
void broadcast_parameters(const torch::nn::Module& module, int root = 0,
                          std::shared_ptr<ProcessGroup> group = {});

// Gives every rank what rank `root`'s optimizer has: its options, such as the
// learning rate, and its state. They are of one class, of parameters of the
// same shapes in the same groups.
void broadcast_optimizer_state(torch::optim::Optimizer& optimizer, int root = 0,
                               std::shared_ptr<ProcessGroup> group = {});

// Rank `root`'s `object`: numbers, strings, tensors, lists and dictionaries of
// them. They travel as a pickle of LibTorch's, which is read without running
// code of its own. Elsewhere `object` does not matter.
c10::IValue broadcast_object(const c10::IValue& object, int root = 0,
                             std::shared_ptr<ProcessGroup> group = {});

// Every rank's `object`, in the order of ranks.
std::vector<c10::IValue> allgather_object(
    const c10::IValue& object, std::shared_ptr<ProcessGroup> group = {});

}  // namespace lockstep

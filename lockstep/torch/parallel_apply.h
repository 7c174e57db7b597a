// One pass over several replicas of a module, side by side, that is one node in
// the caller's graph.
//
// Each replica computes on inputs that are cut off from the caller's graph, in
// a thread of its own, and so makes a graph of its own. What they compute is
// joined in a node whose inputs are the module's parameters and the caller's
// inputs. backward() gives that node the gradients of the joined outputs; it
// cuts them in pieces, lets each replica's graph run backwards in its thread,
// and adds up what they give for each parameter, in the order of replicas.
// So that .grad, hooks on parameters and optimizers see one module, and a plain
// backward() runs on all devices.
//
// Threads: single-threaded.
// Errors:  InvalidArgument for what cannot be cut or joined, and for
//          backward(create_graph = true); what replicas throw.
// Source:  torch.nn.parallel's scatter, replicate, parallel_apply, gather.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <vector>

#include "lockstep/torch/device_threads.h"
#include "lockstep/torch/module_replicas.h"

namespace lockstep {

// Cuts `tensor` along dimension `dim` as evenly as at::chunk does, into as many
// pieces as there are devices or fewer, and moves each to its device: 30 rows
// on 4 devices are 8, 8, 8 and 6. Part of the graph.
std::vector<at::Tensor> scatter(const at::Tensor& tensor,
                                std::span<const at::Device> devices,
                                std::int64_t dim = 0);

// The opposite, on `device`. Scalars become a vector of them, whatever `dim`.
at::Tensor gather(const std::vector<at::Tensor>& pieces, at::Device device,
                  std::int64_t dim = 0);

struct DevicePass {
  // inputs[replica]: the pieces of that replica. All have as many.
  std::vector<std::vector<at::Tensor>> inputs;
  // Runs a replica on its inputs, in its thread, and returns its outputs, as
  // many as the other replicas'.
  std::function<std::vector<at::Tensor>(int replica,
                                        const std::vector<at::Tensor>& inputs)>
      forward;
  // Along which dimension outputs are joined, and where: the first replica's
  // device when empty.
  std::int64_t dim = 0;
  std::optional<at::Device> output_device{};
};

// What a pass has had in memory, by replica.
struct PassMemory {
  std::size_t input_bytes = 0;
  std::size_t output_bytes = 0;
};

// Returns the outputs, joined. `threads` and `replicas`
// must live until backward() over them is done; they may be in use by several
// passes.
std::vector<at::Tensor> parallel_apply(
    const std::shared_ptr<DeviceThreads>& threads,
    const std::shared_ptr<ModuleReplicas>& replicas, const DevicePass& pass,
    std::vector<PassMemory>* memory = nullptr);

}  // namespace lockstep

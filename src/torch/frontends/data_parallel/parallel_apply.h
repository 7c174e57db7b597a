// One pass over several replicas of a module in parallel, as one node in the
// caller's graph.
//
// Each replica computes in a thread of its own, on inputs detached from the
// caller's graph, and so builds a graph of its own. A node joins their outputs;
// its inputs are the module's parameters and the caller's inputs. backward()
// gives that node the gradients of the joined outputs; the node splits them,
// runs each replica's graph backward in its thread, and adds up the results for
// each parameter, in the order of replicas. So .grad, hooks on parameters and
// optimizers see one module, and a plain backward() runs on all devices.
//
// Threads: single-threaded.
// Errors:  InvalidArgument for tensors that cannot be split or joined, and for
//          backward(create_graph = true); what replicas throw.
// Source:  torch.nn.parallel's scatter, replicate, parallel_apply, gather.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <vector>

#include "src/torch/device/device_threads.h"
#include "src/torch/frontends/data_parallel/module_replicas.h"

namespace lockstep::data_parallel {

// Splits `tensor` along dimension `dim` as evenly as at::chunk does, into at
// most one piece per device, and moves each to its device: 30 rows on 4 devices
// are 8, 8, 8 and 6. Autograd records it.
std::vector<at::Tensor> scatter(const at::Tensor& tensor,
                                std::span<const at::Device> devices,
                                std::int64_t dim = 0);

// The opposite, on `device`. Scalars become a vector, whatever `dim` is.
at::Tensor gather(const std::vector<at::Tensor>& pieces, at::Device device,
                  std::int64_t dim = 0);

struct DevicePass {
  // inputs[replica]: the pieces of that replica; the same number for all.
  std::vector<std::vector<at::Tensor>> inputs;
  // Runs a replica on its inputs, in its thread, and returns its outputs, the
  // same number for all replicas.
  std::function<std::vector<at::Tensor>(int replica,
                                        const std::vector<at::Tensor>& inputs)>
      forward;
  // The dimension along which outputs are joined, and the device: the first
  // replica's when empty.
  std::int64_t dim = 0;
  std::optional<at::Device> output_device{};
};

// Memory of a pass, per replica.
struct PassMemory {
  std::size_t input_bytes = 0;
  std::size_t output_bytes = 0;
};

// Returns the joined outputs. `threads` and `replicas` must live until
// backward() over them is done; several passes may share them.
std::vector<at::Tensor> parallel_apply(
    const std::shared_ptr<DeviceThreads>& threads,
    const std::shared_ptr<ModuleReplicas>& replicas, const DevicePass& pass,
    std::vector<PassMemory>* memory = nullptr);

}  // namespace lockstep::data_parallel

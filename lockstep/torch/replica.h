// What DistributedDataParallel does that does not depend on the module's type:
// one rank's copy of the model, kept equal to the others'.
//
// Threads: single-threaded. May be moved while no backward pass runs.
// Errors:  see DistributedDataParallel.
#pragma once

#include <torch/nn/module.h>

#include <cstddef>
#include <memory>
#include <vector>

#include "lockstep/comm/process_group.h"
#include "lockstep/torch/reducer.h"

namespace lockstep {

struct DistributedDataParallelOptions {
  // The ranks that train together; default_group() when empty.
  std::shared_ptr<ProcessGroup> group{};
  // Gradients are reduced in buckets that are closed at these sizes; the first
  // is small, so that reducing starts early.
  std::size_t first_bucket_bytes = std::size_t{1} << 20;
  std::size_t bucket_bytes = std::size_t{25} << 20;
  // Whether rank 0's buffers, such as BatchNorm's running statistics, are
  // copied to all ranks before each forward pass in training.
  bool broadcast_buffers = true;
};

class Replica {
 public:
  // Checks that all ranks have the same model and gives them rank 0's
  // parameters and buffers.
  Replica(std::shared_ptr<const torch::nn::Module> module,
          const DistributedDataParallelOptions& options);

  // To be called before every forward pass: in training mode and with
  // gradients on, gives all ranks rank 0's buffers. Otherwise does nothing and
  // waits for nobody.
  void before_forward();

  const std::shared_ptr<ProcessGroup>& group() const { return group_; }

 private:
  std::shared_ptr<const torch::nn::Module> module_;
  std::shared_ptr<ProcessGroup> group_;
  std::vector<at::Tensor> buffers_;  // those to broadcast before a forward pass
  Reducer reducer_;
};

}  // namespace lockstep

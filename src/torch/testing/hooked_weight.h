// A parameter under a communication hook, whose gradients the test chooses.
//
// Threads: single-threaded.
#pragma once

#include <memory>
#include <utility>

#include "src/torch/gradient/reducer.h"
#include "src/torch/testing/small_nets.h"

namespace lockstep {

class HookedWeight {
 public:
  HookedWeight(const Group& group, at::IntArrayRef sizes,
               std::shared_ptr<CommHook> hook)
      : tensor_(torch::zeros(sizes).requires_grad_()),
        reducer_(Reducer::make({{"weight", tensor_}}, group)) {
    reducer_->register_comm_hook(std::move(hook));
  }

  // The result of `gradient` in a pass.
  at::Tensor reduce(const at::Tensor& gradient) {
    tensor_.mutable_grad().reset();
    (tensor_ * gradient).sum().backward();
    return tensor_.grad();
  }

 private:
  at::Tensor tensor_;
  std::shared_ptr<Reducer> reducer_;
};

}  // namespace lockstep

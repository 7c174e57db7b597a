// Modules, data and a group that records, for the tests of this layer. Weights
// and data come from formulas: nothing depends on a generator that ranks, being
// threads, would share.
//
// Threads: functions of their arguments; a RecordingBackend may be shared.
#pragma once

#include <torch/nn/functional/activation.h>
#include <torch/nn/modules/batchnorm.h>
#include <torch/nn/modules/linear.h>
#include <torch/optim/sgd.h>

#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "lockstep/comm/process_group.h"

namespace lockstep {

// `sizes` filled with numbers between -1 and 1; another `phase`, other numbers.
inline at::Tensor wave(at::IntArrayRef sizes, double phase) {
  std::int64_t count = 1;
  for (const std::int64_t size : sizes) count *= size;
  return torch::sin(torch::arange(count, torch::kFloat) * 0.7 + phase)
      .reshape(sizes);
}

// Gives every parameter of `module` numbers that depend on `phase`.
inline void fill(torch::nn::Module& module, double phase) {
  const torch::NoGradGuard no_grad;
  double number = 0;
  for (at::Tensor& parameter : module.parameters())
    parameter.copy_(wave(parameter.sizes(), phase + ++number) * 0.3);
}

// 6 inputs, 3 outputs, three layers: a plain module, which moves into wrappers.
struct Net : torch::nn::Module {
  Net() {
    first = register_module("first", torch::nn::Linear(6, 8));
    second = register_module("second", torch::nn::Linear(8, 5));
    third = register_module("third", torch::nn::Linear(5, 3));
    fill(*this, 0);
  }
  at::Tensor forward(const at::Tensor& input) {
    return third(torch::tanh(second(torch::tanh(first(input)))));
  }
  torch::nn::Linear first{nullptr}, second{nullptr}, third{nullptr};
};

// Rank `rank`'s equal share of a batch of `ranks` shares of 4 samples; the
// whole batch is share 0 of 1.
struct Share {
  at::Tensor input, target;
};
inline Share share_of_batch(int step, int rank, int ranks, int shares) {
  const at::Tensor input = wave({4 * shares, 6}, step);
  const at::Tensor target = wave({4 * shares, 3}, 100 + step);
  const std::int64_t length = 4 * shares / ranks;
  return {input.narrow(0, rank * length, length),
          target.narrow(0, rank * length, length)};
}

inline at::Tensor loss_of(const at::Tensor& output, const at::Tensor& target) {
  return torch::mean(torch::square(output - target));
}

// `model` is a module or a wrapper of one.
template <class Model>
void train(Model& model, torch::optim::Optimizer& optimizer,
           const std::function<Share(int)>& share_of_step, int steps) {
  for (int step = 0; step < steps; ++step) {
    const Share share = share_of_step(step);
    optimizer.zero_grad();
    loss_of(model.forward(share.input), share.target).backward();
    optimizer.step();
  }
}

// Passes everything on to another group, and remembers what it was asked for.
class RecordingBackend : public Backend {
 public:
  explicit RecordingBackend(std::shared_ptr<ProcessGroup> group)
      : group_(std::move(group)) {}

  std::string_view name() const override { return "recording"; }
  bool supports(const Operation&) const override { return true; }
  void abort(std::string_view reason) noexcept override {
    group_->abort(reason);
  }
  Work start(const Operation& operation) override {
    record(std::string(name_of(operation.kind)));
    switch (operation.kind) {
      case OperationKind::kBarrier:
        return group_->barrier();
      case OperationKind::kBroadcast:
        return group_->broadcast(operation.outputs, operation.root);
      case OperationKind::kAllReduce:
        return group_->all_reduce(operation.outputs, operation.reduction);
      case OperationKind::kAllGather:
        return group_->all_gather(operation.inputs, operation.outputs);
    }
    return Work();
  }

  void record(const std::string& event) {
    const std::lock_guard lock(mutex_);
    events_.push_back(event);
  }
  // What was recorded since the last call.
  std::vector<std::string> take_events() {
    const std::lock_guard lock(mutex_);
    return std::exchange(events_, {});
  }

 private:
  std::shared_ptr<ProcessGroup> group_;
  std::mutex mutex_;
  std::vector<std::string> events_;
};

}  // namespace lockstep

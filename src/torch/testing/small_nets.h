// Modules and data for the tests of this layer. Weights and data come from
// formulas: nothing depends on a generator, which ranks, as threads, would
// share.
#pragma once

#include <torch/nn/functional/activation.h>
#include <torch/nn/modules/batchnorm.h>
#include <torch/nn/modules/linear.h>
#include <torch/optim/sgd.h>

#include <functional>
#include <limits>
#include <memory>
#include <string>
#include <vector>

#include "lockstep/comm/process_group.h"
#include "lockstep/torch/distributed_data_parallel.h"

namespace lockstep {

constexpr char kBackend[] = "shm";
constexpr double kTolerance = 1e-6;  // for float32 sums in another order

using Group = std::shared_ptr<ProcessGroup>;

// `sizes` filled with numbers between -1 and 1; another `phase`, other numbers.
inline at::Tensor wave(at::IntArrayRef sizes, double phase) {
  // When two threads make the first calls of MKL's vector functions at the same
  // time, one of them may get a sine with only four correct digits.
  [[maybe_unused]] static const bool used =
      torch::sin(torch::ones({64})).defined();
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

struct NetWithBatchNorm : torch::nn::Module {
  NetWithBatchNorm() {
    layer = register_module("layer", torch::nn::Linear(6, 3));
    norm = register_module("norm", torch::nn::BatchNorm1d(3));
    fill(*this, 0);
  }
  at::Tensor forward(const at::Tensor& input) { return norm(layer(input)); }
  torch::nn::Linear layer{nullptr};
  torch::nn::BatchNorm1d norm{nullptr};
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

// This rank's equal share of a batch with one share per rank.
inline Share share_on(at::Device device, const ProcessGroup& group, int step) {
  const Share share =
      share_of_batch(step, group.rank(), group.size(), group.size());
  return {share.input.to(device), share.target.to(device)};
}

// Whether every element is `value`.
inline bool all_are(const at::Tensor& tensor, double value) {
  return (tensor == value).all().item<bool>();
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

// Options for a group in which many buckets are made of a small net.
inline DistributedDataParallelOptions small_buckets(const Group& group) {
  return {.group = group, .first_bucket_bytes = 64, .bucket_bytes = 128};
}

// One backward pass over this rank's share of step `step`.
template <class Model>
void backward(Model& model, const ProcessGroup& group, int step = 0) {
  const Share share =
      share_of_batch(step, group.rank(), group.size(), group.size());
  loss_of(model.forward(share.input), share.target).backward();
}

inline std::vector<at::Tensor> gradients_of(const torch::nn::Module& module) {
  std::vector<at::Tensor> gradients;
  for (const at::Tensor& tensor : module.parameters())
    gradients.push_back(tensor.grad());
  return gradients;
}

// The gradients that one process computes from all shares at once.
template <class Module = Net>
std::vector<at::Tensor> gradients_of_one_process(int shares, int step = 0) {
  Module module;
  const Share batch = share_of_batch(step, 0, 1, shares);
  loss_of(module.forward(batch.input), batch.target).backward();
  return gradients_of(module);
}

// Over all elements of two lists of tensors; infinite when their shapes differ.
inline double largest_difference(const std::vector<at::Tensor>& a,
                                 const std::vector<at::Tensor>& b) {
  constexpr double kInfinite = std::numeric_limits<double>::infinity();
  if (a.size() != b.size()) return kInfinite;
  double largest = 0;
  for (std::size_t i = 0; i < a.size(); ++i) {
    if (a[i].defined() != b[i].defined()) return kInfinite;
    if (!a[i].defined()) continue;
    if (a[i].sizes() != b[i].sizes()) return kInfinite;
    if (a[i].numel() == 0) continue;
    const double difference = (a[i] - b[i]).abs().max().item<double>();
    if (!(difference <= largest)) largest = difference;
  }
  return largest;
}

// The message of the exception that `body` throws.
template <class Body>
std::string message_of(const Body& body) {
  try {
    body();
  } catch (const std::exception& error) {
    return error.what();
  }
  return "no error";
}

}  // namespace lockstep

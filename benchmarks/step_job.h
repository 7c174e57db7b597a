// What one rank of the benchmark of a step trains, and how: the model, its
// batch, and what updates the weights. peers/ddp_step.py has the same jobs.
//
//   cnn, mlp, convnet
//                `lockstep train`'s, the mlp with 2 x 4096 hidden units; 64
//                images of 1 x 28 x 28
//   resnet18     64 images of 3 x 32 x 32
//   transformer  causal_transformer.h; 16 sequences of 64 tokens
//
// Every rank has the same weights and a batch of its own. The images are of 10
// classes. AdamW (learning rate 0.0003, weight decay 0.1) trains the
// transformer, whose gradients are clipped to a norm of 1; SGD (learning rate
// 0.01, momentum 0.5) trains the others.
//
// Threads: single-threaded.
// Errors:  InvalidArgument for a model that is not known.
#pragma once

#include <ATen/core/Tensor.h>
#include <torch/nn/module.h>
#include <torch/optim/optimizer.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <string>

namespace lockstep {

enum class StepWay {
  kLibTorch,  // alone, without a group
  kDdp,       // under our DistributedDataParallel
  kSharded,   // and a ZeroRedundancyOptimizer that averages as it updates
};

struct StepJob {
  std::string model;
  StepWay way = StepWay::kLibTorch;
  bool deterministic = false;  // no dropout
  int threads = 1;             // and so many times a rank's batch
};

struct StepModel {
  std::shared_ptr<torch::nn::Module> module;
  // The module's, or its wrapper's, which this keeps.
  std::function<at::Tensor(const at::Tensor& inputs)> forward;
};

// Wraps the module where the job says so; default_group() is there then.
StepModel make_step_model(const StepJob& job, int rank);

struct StepBatch {
  at::Tensor inputs;  // images, or tokens
  at::Tensor labels;  // a class for each row of what the model gives
};

StepBatch make_step_batch(const StepJob& job, int rank);

struct StepUpdate {
  std::unique_ptr<torch::optim::Optimizer> optimizer;
  // Clips the gradients and returns what their norm was; empty where the job
  // clips nothing. Called between backward() and the optimizer's step().
  std::function<double()> clip;
};

// Under DistributedDataParallel the optimizers are our fused ones, but for cnn
// and mlp LibTorch's SGD, so that the wrapper is all that differs from LibTorch
// alone.
StepUpdate make_step_update(const StepJob& job, torch::nn::Module& module);

}  // namespace lockstep

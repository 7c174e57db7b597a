// Optimizers whose step reads memory once, the clipping of gradients, and a
// schedule of the learning rate.
#pragma once

#include <ATen/core/Tensor.h>
#include <torch/optim/adam.h>
#include <torch/optim/adamw.h>
#include <torch/optim/optimizer.h>
#include <torch/optim/schedulers/lr_scheduler.h>
#include <torch/optim/sgd.h>

#include <cstdint>
#include <memory>
#include <vector>

#include "lockstep/torch/gradient_scaler.h"

namespace lockstep {

// Clips gradients by their global norm, in one pass over the memory. The norm
// is the Euclidean one, or the p-norm of any p above 0; the infinity norm is
// the largest absolute value.
//
// Where all ranks hold the averaged gradients, as DistributedDataParallel
// leaves them, every rank computes the same norm, to the bit, and sends
// nothing. For a p other than 2 and infinity this needs the same number of
// compute threads and the same processor on all ranks, since LibTorch's order
// of additions depends on both. FusedSGD and its kind, and
// ZeroRedundancyOptimizer, have a method of this name that saves the second
// pass; with ZeroRedundancyOptimizer's each rank reads only its share.
//
// Errors:  InvalidArgument for a gradient that is sparse or not of floating
//          point, for a max_norm that is NaN or negative, and for a p that is
//          not above 0.
// Source:  torch.nn.utils.clip_grad_norm_.

// The norm of all gradients as one vector; 0 when no parameter has a gradient.
// It is computed in float64, but for p = 2 on a GPU each tensor's in float32. A
// parameter that is given twice counts once.
double grad_norm(at::TensorList parameters, double norm_type = 2);

// Multiplies the gradients by the factor that brings their norm to at most
// `max_norm`, in place, and returns their norm before. The factor is NaN for a
// norm of NaN and 0 for an infinite one, as in PyTorch.
double clip_grad_norm(at::TensorList parameters, double max_norm,
                      double norm_type = 2);

// LibTorch's SGD, Adam and AdamW, with a step() that makes one pass over
// memory.
//
//     const auto rule = torch::optim::SGDOptions(0.1).momentum(0.9);
//     lockstep::FusedSGD optimizer(model.parameters(), rule);
//
// They are LibTorch's classes except for step(): options, parameter groups,
// schedulers and files are the same, and each loads files that the other saved.
// Results are equal up to rounding, since LibTorch uses fused multiply-add
// where the CPU has it. They refuse amsgrad and sparse gradients. The state of
// 16-bit parameters is float32.
//
// A step runs on the calling thread, whatever at::set_num_threads() says:
// data-parallel training runs the ranks in parallel instead. LibTorch's
// multi-tensor kernels update parameters on a GPU.
//
// A program may add groups of parameters at any time with add_param_group(). A
// pending factor of gradients, from clip_grad_norm() or a GradientScaler, then
// applies to them too.
//
// A parameter that is given twice, as LibTorch's module.parameters() gives tied
// weights, is updated once per step, as in Python.
//
// Threads: single-threaded.
// Errors:  InvalidArgument from the constructor, for options and parameters
//          that the kernels do not support; from step(), for such gradients.
//          step() then leaves all parameters unchanged.

class GradientFactor;

// `Optimizer` is LibTorch's class, `Options` its options.
template <class Optimizer, class Options>
class Fused : public Optimizer, public ScalesGradients {
 public:
  using LossClosure = torch::optim::Optimizer::LossClosure;

  explicit Fused(std::vector<at::Tensor> parameters,
                 const Options& options = {});
  explicit Fused(const std::vector<torch::optim::OptimizerParamGroup>& groups,
                 const Options& defaults = {});
  ~Fused() override;
  Fused(Fused&&) noexcept;

  // One step on every parameter that has a gradient. Autograd counts it as a
  // modification, as in Python.
  at::Tensor step(LossClosure closure = nullptr) override;

  // As LibTorch's. Forgets factors of scale_gradients() and clip_grad_norm()
  // that no step has used.
  void zero_grad(bool set_to_none = true);

  // The next step() multiplies every gradient by `factor`; factors of several
  // calls multiply. This costs nothing, and leaves .grad as it is. Call it
  // after backward(): a gradient that changes before the step loses the factor.
  void scale_gradients(double factor) override;

  // As LibTorch's, except that it keeps the state of a parameter that is given
  // twice.
  void load(torch::serialize::InputArchive& archive) override;

  double take_scaling() override;
  void forget_scaling() override;

  // Scales so that the norm of all gradients together is at most `max_norm`.
  // Returns the norm before, scale_gradients() included. Of several calls the
  // last counts. Call it after backward(), like scale_gradients(). See
  // clip_grad_norm().
  double clip_grad_norm(double max_norm, double norm_type = 2);

 private:
  std::unique_ptr<GradientFactor> factor_;  // of the next step
};

using FusedSGD = Fused<torch::optim::SGD, torch::optim::SGDOptions>;
using FusedAdam = Fused<torch::optim::Adam, torch::optim::AdamOptions>;
using FusedAdamW = Fused<torch::optim::AdamW, torch::optim::AdamWOptions>;

extern template class Fused<torch::optim::SGD, torch::optim::SGDOptions>;
extern template class Fused<torch::optim::Adam, torch::optim::AdamOptions>;
extern template class Fused<torch::optim::AdamW, torch::optim::AdamWOptions>;

// A learning rate that falls along a half cosine, for a user's own training
// loop:
//
//     torch::optim::SGD optimizer(model.parameters(), 0.1);
//     lockstep::CosineAnnealingLR schedule(optimizer, {.t_max = epochs});
//     for (int epoch = 0; epoch < epochs; ++epoch) {
//       …                  // optimizer.step(), batch by batch
//       schedule.step();
//     }
//
// LibTorch has only StepLR and ReduceLROnPlateau. This class works on any
// optimizer of LibTorch's and Lockstep's, each group of parameters by its own
// rate. After the n-th step() a rate is min + (first - min) (1 + cos(π n /
// t_max)) / 2; beyond t_max it rises again, as in PyTorch. With a warm-up the
// cosine begins after it. That follows from the first rate and n alone: a rate
// that the program sets in between holds until the next step(). PyTorch
// computes each rate from the present one, so there such a change stays.
//
// Threads: single-threaded. The optimizer must outlive it.
// Errors:  InvalidArgument for a t_max below 1, a rate that is NaN or infinite,
//          a negative last_epoch or warmup, and a start_factor that is not
//          from 0 to 1.
// Source:  torch.optim.lr_scheduler.CosineAnnealingLR; with a warm-up LinearLR
//          before it in a SequentialLR; Loshchilov and Hutter,
//          "SGDR: Stochastic Gradient Descent with Warm Restarts", ICLR 2017.

struct CosineAnnealingOptions {
  // Calls of step() until the rate reaches its minimum, after the warm-up.
  std::int64_t t_max = 1;
  double eta_min = 0;
  // Calls of step() in the run that this one resumes; PyTorch's last_epoch is
  // one less. The optimizer must have its first rates when the schedule is
  // made: set them again after a checkpoint has restored later ones. PyTorch
  // finds them as initial_lr, which LibTorch's optimizers do not keep.
  std::int64_t last_epoch = 0;
  // Calls of step() during which the rate first rises linearly, from
  // start_factor times the optimizer's rate to all of it.
  std::int64_t warmup = 0;
  double start_factor = 0.01;
};

class CosineAnnealingLR final : public torch::optim::LRScheduler {
 public:
  // The cosine begins with the present rates of `optimizer`, to which a warm-up
  // rises.
  CosineAnnealingLR(torch::optim::Optimizer& optimizer,
                    const CosineAnnealingOptions& options);

  // Calls of step(), those before `last_epoch` included.
  std::int64_t last_epoch() const { return options_.last_epoch + step_count_; }

 private:
  // LibTorch gets the next rates here, and then counts the step.
  std::vector<double> get_lrs() override;
  std::vector<double> rates_after(std::int64_t steps) const;

  CosineAnnealingOptions options_;
  std::vector<double> first_rates_;  // by group
};

}  // namespace lockstep

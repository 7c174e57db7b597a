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
#pragma once

#include <torch/optim/adam.h>
#include <torch/optim/adamw.h>
#include <torch/optim/sgd.h>

#include <memory>
#include <vector>

#include "lockstep/torch/gradient_scaler.h"

namespace lockstep {

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
  // clip_gradients.h.
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

}  // namespace lockstep

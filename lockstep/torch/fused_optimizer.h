// LibTorch's SGD, Adam and AdamW, with a step() that goes over memory once.
//
//     lockstep::FusedSGD optimizer(model.parameters(),
//                                  torch::optim::SGDOptions(0.1).momentum(0.9));
//
// They are LibTorch's classes but for step(): options, parameter groups,
// schedulers and files are the same, and a file that one has saved the other
// loads. Results are equal up to rounding: see ddp/update_kernels.h. amsgrad
// and sparse gradients are refused. The state of 16-bit parameters is float32.
//
// A step runs on the calling thread, whatever at::set_num_threads() says: in
// data-parallel training ranks are what runs at once. Parameters on a GPU are
// updated there, by LibTorch's multi-tensor kernels.
//
// Groups of parameters may be added at any time, by add_param_group(). A factor
// of gradients, from clip_grad_norm() or a GradientScaler, that a step has
// still to take is then theirs too.
//
// A parameter that is given twice, as tied weights are by LibTorch's
// module.parameters(), is updated once a step, as in Python.
//
// Threads: single-threaded.
// Errors:  InvalidArgument when made, for options and parameters that the
//          kernels do not know; from step(), for such gradients. No parameter
//          has changed then.
#pragma once

#include <torch/optim/adam.h>
#include <torch/optim/adamw.h>
#include <torch/optim/sgd.h>

#include <vector>

#include "lockstep/torch/gradient_factor.h"
#include "lockstep/torch/scales_gradients.h"

namespace lockstep {

// `Optimizer` is LibTorch's class, `Options` its options.
template <class Optimizer, class Options>
class Fused : public Optimizer, public ScalesGradients {
 public:
  using LossClosure = torch::optim::Optimizer::LossClosure;

  explicit Fused(std::vector<at::Tensor> parameters,
                 const Options& options = {});
  explicit Fused(const std::vector<torch::optim::OptimizerParamGroup>& groups,
                 const Options& defaults = {});

  // One step on every parameter that has a gradient. Counts as a modification
  // for autograd, as in Python.
  at::Tensor step(LossClosure closure = nullptr) override;

  // As LibTorch's. Forgets what scale_gradients() and clip_grad_norm() have
  // said of a step that was not made.
  void zero_grad(bool set_to_none = true);

  // Lets the next step() take every gradient times `factor`; factors of several
  // calls multiply. This costs nothing, and leaves .grad as it is. To be called
  // after backward(): a gradient that changes before the step is another one,
  // and takes the factor with it.
  void scale_gradients(double factor) override;

  // As LibTorch's, which loses the state of a parameter that is given twice.
  void load(torch::serialize::InputArchive& archive) override;

  double take_scaling() override;
  void forget_scaling() override { factor_.forget(); }

  // Scales so that the norm of all gradients together is at most `max_norm`.
  // Returns what it was, scale_gradients() included. Of several calls the last
  // counts; as with scale_gradients(), after backward(). See clip_gradients.h.
  double clip_grad_norm(double max_norm, double norm_type = 2);

 private:
  GradientFactor factor_;  // of the next step
};

using FusedSGD = Fused<torch::optim::SGD, torch::optim::SGDOptions>;
using FusedAdam = Fused<torch::optim::Adam, torch::optim::AdamOptions>;
using FusedAdamW = Fused<torch::optim::AdamW, torch::optim::AdamWOptions>;

extern template class Fused<torch::optim::SGD, torch::optim::SGDOptions>;
extern template class Fused<torch::optim::Adam, torch::optim::AdamOptions>;
extern template class Fused<torch::optim::AdamW, torch::optim::AdamWOptions>;

}  // namespace lockstep

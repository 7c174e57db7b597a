// An optimizer whose step() takes gradients times a factor for nothing, as it
// reads them anyway. FusedSGD and its kind and ZeroRedundancyOptimizer are
// such; GradientScaler asks for it.
//
// Threads: as the optimizer.
#pragma once

namespace lockstep {

class ScalesGradients {
 public:
  virtual ~ScalesGradients() = default;

  // Lets the next step() take every gradient times `factor`; factors of several
  // calls multiply. .grad stays as it is. The factor is of the gradients as
  // they are now: see gradient_factor.h.
  virtual void scale_gradients(double factor) = 0;

  // The product of the factors, clipping included, which are forgotten: for one
  // who changes the gradients and gives it anew then.
  virtual double take_scaling() = 0;

  // Forgets the factors, and any clipping, of a step that will not be made.
  virtual void forget_scaling() = 0;
};

}  // namespace lockstep

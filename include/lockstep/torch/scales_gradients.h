// An optimizer whose step() multiplies gradients by a factor at no cost, as it
// reads them anyway: FusedSGD, FusedAdam, FusedAdamW and
// ZeroRedundancyOptimizer. GradientScaler uses this interface.
//
// Threads: like the optimizer.
#pragma once

namespace lockstep {

class ScalesGradients {
 public:
  virtual ~ScalesGradients() = default;

  // The next step() multiplies every gradient by `factor`; factors of several
  // calls multiply. .grad stays as it is. The factor applies to the present
  // gradients only: see gradient_factor.h.
  virtual void scale_gradients(double factor) = 0;

  // Returns the product of the factors, clipping included, and forgets them:
  // for a caller that changes the gradients and sets the factor again.
  virtual double take_scaling() = 0;

  // Forgets the factors, clipping included, of a skipped step.
  virtual void forget_scaling() = 0;
};

}  // namespace lockstep

// What an optimizer's next step multiplies gradients with as it reads them.
//
// A factor is of gradients as they are when it is given: once one is another
// tensor, or was written to, it is forgotten, as a step's that was left out. A
// factor that is given while no parameter has a gradient is of those that the
// next pass brings.
//
// Threads: single-threaded.
// Errors:  none.
#pragma once

#include <ATen/core/Tensor.h>

#include <span>

#include "lockstep/torch/seen_gradients.h"

namespace lockstep {

class GradientFactor {
 public:
  using Tensors = std::span<const at::Tensor>;

  // Factors of several calls multiply.
  void scale(double factor, Tensors parameters);
  // Of several calls the last counts.
  void clip(double factor, Tensors parameters);
  void forget();

  // The product of what scale() was given.
  double scaled_by(Tensors parameters);
  // All of it, and forgets it.
  double take(Tensors parameters);

 private:
  void forget_other_gradients(Tensors parameters);

  double scale_ = 1;
  double clip_ = 1;
  SeenGradients seen_;
};

}  // namespace lockstep

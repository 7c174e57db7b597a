#include "lockstep/torch/gradient_factor.h"

namespace lockstep {

void GradientFactor::scale(double factor, Tensors parameters) {
  forget_other_gradients(parameters);
  scale_ *= factor;
  seen_.see(parameters);
}

void GradientFactor::clip(double factor, Tensors parameters) {
  clip_ = factor;
  seen_.see(parameters);
}

void GradientFactor::forget() {
  scale_ = clip_ = 1;
  seen_.forget();
}

double GradientFactor::scaled_by(Tensors parameters) {
  forget_other_gradients(parameters);
  return scale_;
}

double GradientFactor::take(Tensors parameters) {
  forget_other_gradients(parameters);
  const double all = scale_ * clip_;
  forget();
  return all;
}

void GradientFactor::forget_other_gradients(Tensors parameters) {
  if (!seen_.saw_none() && !seen_.are_unchanged(parameters)) forget();
}

}  // namespace lockstep

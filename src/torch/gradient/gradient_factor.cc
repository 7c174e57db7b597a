#include "src/torch/gradient/gradient_factor.h"

#include <algorithm>

namespace lockstep {

void GradientFactor::scale(double factor, Tensors parameters) {
  forget_other_gradients(parameters);
  scales_.push_back({calls_++, factor});
  seen_.see(parameters);
}

void GradientFactor::clip(double factor, Tensors parameters) {
  clip_ = Given{calls_++, factor};
  seen_.see(parameters);
}

void GradientFactor::forget() {
  scales_.clear();
  clip_.reset();
  first_ = calls_;
  seen_.forget();
}

std::uint64_t GradientFactor::first_call(Tensors parameters) {
  forget_other_gradients(parameters);
  return first_;
}

void GradientFactor::forget_before(std::uint64_t call) {
  std::erase_if(scales_, [&](const Given& given) { return given.call < call; });
  if (clip_ && clip_->call < call) clip_.reset();
  first_ = std::max(first_, call);
}

double GradientFactor::scaled_by(Tensors parameters) {
  forget_other_gradients(parameters);
  double product = 1;
  for (const Given& given : scales_) product *= given.factor;
  return product;
}

double GradientFactor::take(Tensors parameters) {
  const double all = scaled_by(parameters) * (clip_ ? clip_->factor : 1);
  forget();
  taken_ = calls_;
  return all;
}

void GradientFactor::forget_other_gradients(Tensors parameters) {
  if (!seen_.saw_none() && !seen_.are_unchanged(parameters)) forget();
}

}  // namespace lockstep

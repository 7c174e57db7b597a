#include "lockstep/torch/kept_gradients.h"

#include <ATen/ops/zeros_like.h>

#include <utility>

namespace lockstep {

KeptGradients::KeptGradients(std::size_t parameters, Memory memory)
    : memory_(memory), is_kept_(parameters, 0) {}

void KeptGradients::keep(std::size_t parameter, const at::Tensor& tensor) {
  if (memory_ == Memory::kBucket || is_kept_[parameter] != 0) return;
  is_kept_[parameter] = 1;
  moved_.push_back({parameter, tensor, tensor.grad(), {}});
}

void KeptGradients::stand_in(std::size_t parameter, const at::Tensor& tensor) {
  Loan loan{parameter, tensor, tensor.grad(), {}};
  if (loan.gradient.defined())
    loan.values = loan.gradient.clone();
  else
    tensor.mutable_grad() = at::zeros_like(tensor);
  loans_.push_back(std::move(loan));
}

void KeptGradients::settle(const std::function<bool(std::size_t)>& unused) {
  for (const Loan& loan : loans_) {
    if (!unused(loan.parameter)) continue;
    if (loan.gradient.defined()) loan.gradient.copy_(loan.values);
    loan.tensor.mutable_grad() = loan.gradient;
  }
  for (const Loan& moved : moved_) {
    is_kept_[moved.parameter] = 0;
    at::Tensor& gradient = moved.tensor.mutable_grad();
    // What was given back above is in its own memory, or gone.
    if (!gradient.defined() || gradient.is_same(moved.gradient)) continue;
    moved.gradient.copy_(gradient);
    gradient = moved.gradient;
  }
  loans_.clear();
  moved_.clear();
}

}  // namespace lockstep

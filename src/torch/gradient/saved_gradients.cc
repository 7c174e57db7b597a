#include "src/torch/gradient/saved_gradients.h"

#include <ATen/ops/empty_like.h>
#include <ATen/ops/zeros_like.h>

#include <algorithm>
#include <utility>

#include "src/torch/tensor/tensor_memory.h"

namespace lockstep {

SavedGradients::SavedGradients(std::size_t parameters, Memory memory)
    : memory_(memory), is_saved_(parameters, 0) {}

void SavedGradients::forward_begins(std::span<const at::Tensor> parameters) {
  if (memory_ == Memory::kOwn) before_forward_.see(parameters);
}

void SavedGradients::keep(std::size_t parameter, const at::Tensor& tensor) {
  if (memory_ == Memory::kBucket || is_saved_[parameter] != 0) return;
  is_saved_[parameter] = 1;
  const at::Tensor& gradient = tensor.grad();
  if (!gradient.defined()) return;
  moved_.push_back({parameter, tensor, gradient,
                    is_exclusive(gradient) ? Moved::kExclusive
                    : before_forward_.is_same(parameter, tensor)
                        ? Moved::kCallers
                        : Moved::kShared});
}

void SavedGradients::stand_in(std::size_t parameter, const at::Tensor& tensor) {
  Loan loan{parameter, tensor, tensor.grad(), {}};
  if (loan.gradient.defined())
    loan.values = loan.gradient.clone();
  else
    tensor.mutable_grad() =
        at::zeros_like(tensor, at::dtype(gradient_type(tensor)));
  loans_.push_back(std::move(loan));
}

// In the order of their beginnings, a span overlaps an earlier one exactly when
// it overlaps the one with the furthest end.
void SavedGradients::find_shared_among_callers() {
  std::vector<std::pair<const std::byte*, Moved*>> callers;
  for (Moved& moved : moved_)
    if (moved.memory == Moved::kCallers)
      callers.emplace_back(extent_of(moved.gradient).first, &moved);
  std::ranges::sort(callers);
  Moved* furthest = nullptr;
  for (const auto& [begin, moved] : callers) {
    const auto* const end = extent_of(moved->gradient).second;
    const auto* const reached =
        furthest ? extent_of(furthest->gradient).second : begin;
    if (begin < reached) furthest->memory = moved->memory = Moved::kShared;
    if (end > reached) furthest = moved;
  }
}

void SavedGradients::give_memory(const Moved& moved) {
  at::Tensor& gradient = moved.tensor.mutable_grad();
  // A gradient that was given back already has its own memory, or is gone.
  if (!gradient.defined() || gradient.is_same(moved.gradient)) return;
  if (moved.memory == Moved::kShared) {
    if (!is_exclusive(gradient)) gradient = gradient.clone();
    return;
  }
  moved.gradient.copy_(gradient);
  gradient = moved.gradient;
}

void SavedGradients::settle(const std::function<bool(std::size_t)>& unused) {
  for (const Loan& loan : loans_) {
    if (!unused(loan.parameter)) continue;
    if (loan.gradient.defined()) loan.gradient.copy_(loan.values);
    loan.tensor.mutable_grad() = loan.gradient;
  }
  find_shared_among_callers();
  for (const Moved& moved : moved_) {
    is_saved_[moved.parameter] = 0;
    give_memory(moved);
  }
  loans_.clear();
  moved_.clear();
}

}  // namespace lockstep

#include "src/torch/optim/gradient_average.h"

#include <ATen/ops/zeros_like.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <limits>
#include <span>
#include <utility>

#include "lockstep/base/error.h"
#include "lockstep/torch/tensor_collectives.h"
#include "src/torch/gradient/missing_gradients.h"
#include "src/torch/tensor/tensor_memory.h"

namespace lockstep {
namespace {

// More than any number of parameters.
constexpr std::int64_t kSomeAreUnusable =
    std::numeric_limits<std::int64_t>::max();

// A gradient in memory that may be written to: autograd may give several
// parameters one gradient, or parts of one. The reduction would refuse
// overlaps, and only on some ranks.
at::Tensor local_gradient_of(const OptimizedParameter& parameter) {
  const at::Tensor gradient = gradient_of(parameter);
  if (!gradient.defined()) return at::zeros_like(parameter.tensor);
  return is_exclusive(gradient) ? gradient : gradient.clone();
}

}  // namespace

GradientAverage::GradientAverage(std::shared_ptr<ProcessGroup> group,
                                 std::span<const OptimizedParameter> parameters)
    : group_(std::move(group)),
      parameters_(parameters),
      tensors_(tensors_of(parameters)) {}

std::vector<char> GradientAverage::missing_everywhere() const {
  std::vector<MissingGradients::Mark> marks;
  for (const auto& parameter : parameters_)
    marks.push_back(parameter.tensor.grad().defined()
                        ? MissingGradients::Mark::kArrived
                        : MissingGradients::Mark::kMissing);
  std::vector<std::int64_t> told{
      std::ranges::all_of(parameters_, has_usable_gradient)
          ? std::ranges::count(marks, MissingGradients::Mark::kMissing)
          : kSomeAreUnusable};
  group_
      ->all_reduce(view(told), ReduceOp::kMax,
                   {.label = "parameters without gradients"})
      .wait();
  if (told[0] == kSomeAreUnusable) {
    for (const auto& parameter : parameters_) check_gradient(parameter);
    throw InvalidArgument(
        "a parameter has a sparse gradient, or one of a wider type than its "
        "own, on another rank\n"
        "  next:    read that rank's error; use dense gradients "
        "(EmbeddingOptions::sparse(false)) of the parameters' type");
  }
  std::vector<char> missing(parameters_.size());
  if (told[0] == 0) return missing;
  const MissingGradients all(*group_, marks);
  for (std::size_t i = 0; i < missing.size(); ++i)
    missing[i] = all.everywhere(i) ? 1 : 0;
  return missing;
}

// One operation per data type. All lists are made before an operation starts: a
// failure until then comes while no rank writes to gradients.
void GradientAverage::average(const std::vector<char>& settled) {
  std::vector<std::vector<Buffer>> lists;
  for (std::size_t i = 0; i < parameters_.size(); ++i) {
    if (settled[i] != 0) continue;
    const OptimizedParameter& parameter = parameters_[i];
    const at::Tensor gradient = local_gradient_of(parameter);
    parameter.tensor.mutable_grad() = gradient;
    const Buffer buffer{.data = bytes_at(gradient, 0),
                        .count = gradient.numel(),
                        .type = data_type_of(gradient.scalar_type()),
                        .device = buffer_device(gradient)};
    add_by_type(lists, buffer);
  }
  for (const auto& buffers : lists)
    group_
        ->all_reduce(buffers, ReduceOp::kAverage,
                     {.label = "gradients of a sharded optimizer"})
        .wait();
}

void GradientAverage::average_all() {
  average(missing_everywhere());
  averages_.see(tensors_);
  remembers_ = true;
}

// One rank's gradients may have changed alone: by a pass that brought the other
// ranks no gradient.
bool GradientAverage::averaged() {
  if (!remembers_) return false;
  std::array<std::uint8_t, 1> told{
      static_cast<std::uint8_t>(averages_.are_unchanged(tensors_) ? 1 : 0)};
  group_
      ->all_reduce(view(std::span(told.data(), told.size())), ReduceOp::kMin,
                   {.label = "whether gradients are averages"})
      .wait();
  remembers_ = told[0] != 0;
  return remembers_;
}

}  // namespace lockstep

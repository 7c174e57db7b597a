#include "lockstep/torch/local_gradients.h"

#include <ATen/ops/zeros_like.h>

#include <algorithm>
#include <limits>
#include <utility>

#include "lockstep/base/error.h"
#include "lockstep/torch/missing_gradients.h"
#include "lockstep/torch/tensor_buffer.h"

namespace lockstep {
namespace {

// More than any number of parameters.
constexpr std::int64_t kSomeAreSparse =
    std::numeric_limits<std::int64_t>::max();

bool is_sparse(const OptimizedParameter& parameter) {
  const at::Tensor& gradient = parameter.tensor.grad();
  return gradient.defined() && gradient.layout() != at::kStrided;
}

// Counts what was written to it.
std::uint32_t version_of(const at::Tensor& tensor) {
  return tensor.unsafeGetTensorImpl()->version_counter().current_version();
}

}  // namespace

LocalGradients::LocalGradients(std::shared_ptr<ProcessGroup> group,
                               std::span<const OptimizedParameter> parameters)
    : group_(std::move(group)), parameters_(parameters) {}

std::vector<char> LocalGradients::missing_everywhere() const {
  std::vector<MissingGradients::Mark> marks;
  for (const auto& parameter : parameters_)
    marks.push_back(parameter.tensor.grad().defined()
                        ? MissingGradients::Mark::kArrived
                        : MissingGradients::Mark::kMissing);
  std::vector<std::int64_t> told{
      std::ranges::any_of(parameters_, is_sparse)
          ? kSomeAreSparse
          : std::ranges::count(marks, MissingGradients::Mark::kMissing)};
  group_
      ->all_reduce(view(told), ReduceOp::kMax,
                   {.place = "parameters without gradients"})
      .wait();
  if (told[0] == kSomeAreSparse) {
    for (const auto& parameter : parameters_) check_gradient(parameter);
    throw InvalidArgument(
        "a parameter has a sparse gradient on another rank\n"
        "  next:    use dense gradients: EmbeddingOptions::sparse(false)");
  }
  std::vector<char> missing(parameters_.size());
  if (told[0] == 0) return missing;
  const MissingGradients all(*group_, marks);
  for (std::size_t i = 0; i < missing.size(); ++i)
    missing[i] = all.everywhere(i) ? 1 : 0;
  return missing;
}

// One operation a data type. All lists are made before one is started: what
// fails until then fails while nobody writes to gradients.
void LocalGradients::average(const std::vector<char>& settled) {
  std::vector<std::vector<Buffer>> lists;
  for (std::size_t i = 0; i < parameters_.size(); ++i) {
    if (settled[i] != 0) continue;
    const OptimizedParameter& parameter = parameters_[i];
    at::Tensor gradient = gradient_of(parameter);
    if (!gradient.defined()) gradient = at::zeros_like(parameter.tensor);
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
                     {.place = "gradients of a sharded optimizer"})
        .wait();
}

void LocalGradients::average_all() {
  average(missing_everywhere());
  seen_.clear();
  for (const auto& parameter : parameters_) {
    const at::Tensor& gradient = parameter.tensor.grad();
    Seen seen{decltype(Seen::gradient)(gradient.getIntrusivePtr())};
    if (gradient.defined()) seen.version = version_of(gradient);
    seen_.push_back(std::move(seen));
  }
}

bool LocalGradients::averaged() const {
  if (seen_.empty()) return false;
  for (std::size_t i = 0; i < parameters_.size(); ++i)
    if (!is_as_seen(i)) return false;
  return true;
}

bool LocalGradients::is_as_seen(std::size_t parameter) const {
  const at::Tensor& gradient = parameters_[parameter].tensor.grad();
  const auto before = seen_[parameter].gradient.lock();
  if (!gradient.defined()) return !before.defined();
  return before.get() == gradient.unsafeGetTensorImpl() &&
         version_of(gradient) == seen_[parameter].version;
}

}  // namespace lockstep

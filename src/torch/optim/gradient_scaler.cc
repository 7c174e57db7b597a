#include "lockstep/torch/gradient_scaler.h"

#include <ATen/OpMathType.h>
#include <ATen/TensorOperators.h>
#include <ATen/ops/_amp_foreach_non_finite_check_and_unscale.h>
#include <ATen/ops/full.h>
#include <ATen/ops/zeros.h>
#include <c10/core/GradMode.h>
#include <c10/util/StringUtil.h>
#include <torch/serialize/archive.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>
#include <limits>
#include <set>
#include <string>
#include <vector>

#include "lockstep/base/error.h"
#include "lockstep/comm/groups.h"
#include "lockstep/torch/optimizers.h"
#include "src/torch/optim/update_state.h"
#include "src/torch/tensor/tensor_lists.h"
#include "src/torch/tensor/tensor_memory.h"

namespace lockstep {
namespace {

using Optimizer = torch::optim::Optimizer;
using Limits = std::numeric_limits<float>;

// 1 / scale must be a float32 too.
bool is_scale(double scale) {
  return scale >= Limits::min() && scale <= Limits::max();
}

double rounded(double scale) { return static_cast<float>(scale); }

void check(const GradientScalerOptions& options) {
  const auto require = [](bool fits, const char* what) {
    if (!fits)
      throw InvalidArgument(std::string("a gradient scaler's ") + what);
  };
  require(is_scale(options.init_scale),
          "init_scale must be above 0 and a float32");
  require(options.growth_factor > 1 && std::isfinite(options.growth_factor),
          "growth_factor must be above 1");
  require(options.backoff_factor > 0 && options.backoff_factor < 1,
          "backoff_factor must be between 0 and 1");
  require(options.growth_interval >= 1,
          "growth_interval must be at least 1 step");
}

// Gradients that LibTorch's operations on lists can write to, each once: the
// values of a sparse one may be memory that another has too, such as those of
// two embeddings whose outputs are added.
std::vector<at::Tensor> gradients_of(const Optimizer& optimizer) {
  std::vector<at::Tensor> gradients;
  std::set<const void*> values;
  for (const auto& [tensor, group, index] :
       parameters_of(optimizer.param_groups())) {
    resolve_gradient(tensor);
    if (!tensor.grad().defined()) continue;
    at::Tensor& gradient = tensor.mutable_grad();
    if (gradient.is_sparse() && gradient._nnz() > 0 &&
        !values.insert(gradient._values().const_data_ptr()).second)
      gradient = gradient.clone();
    gradients.push_back(gradient);
  }
  return gradients;
}

// The stored values of a gradient.
at::Tensor values_of(const at::Tensor& gradient) {
  return gradient.is_sparse() ? gradient._values() : gradient;
}

// A float16 gradient has overflowed already where float32 would not, and has
// no digits left to divide. LibTorch's kernel for GPUs does not know bfloat16.
bool can_be_unscaled(const at::Tensor& gradient) {
  return (gradient.layout() == at::kStrided || gradient.is_sparse()) &&
         at::isFloatingType(gradient.scalar_type()) &&
         gradient.scalar_type() != at::kHalf &&
         (gradient.is_cpu() || gradient.scalar_type() != at::kBFloat16);
}

// As in PyTorch: computed in float64, rounded to float32. Exact for a power of
// two.
float inverse_of(double scale) { return static_cast<float>(1 / scale); }

// One query per gradient type on a GPU: the host waits for the answer.
bool divide(const std::vector<at::Tensor>& gradients, double scale) {
  std::vector<at::Tensor> values;
  for (const at::Tensor& gradient : gradients)
    values.push_back(values_of(gradient));
  std::vector<at::Tensor> overflows;
  for (const auto& list : by_device_and_type(values)) {
    const auto options =
        at::TensorOptions(list.front().device()).dtype(at::kFloat);
    overflows.push_back(at::zeros({1}, options));
    at::_amp_foreach_non_finite_check_and_unscale_(
        list, overflows.back(), at::full({1}, inverse_of(scale), options));
  }
  return std::ranges::all_of(overflows, [](const at::Tensor& overflow) {
    return overflow.item<float>() == 0;
  });
}

// Whether the norm, which is computed in float64, is infinite or NaN exactly
// when an element is.
bool norm_tells_overflow(const at::Tensor& gradient) {
  return gradient.layout() == at::kStrided && gradient.device().is_cpu() &&
         gradient.scalar_type() != at::kDouble;
}

bool are_finite(const Optimizer& optimizer) {
  std::vector<at::Tensor> parameters;
  for (const auto& parameter : parameters_of(optimizer.param_groups()))
    parameters.push_back(parameter.tensor);
  return std::isfinite(grad_norm(parameters));
}

}  // namespace

// A rank's finding; the maximum over the ranks decides.
enum class GradientScaler::Finding : int { kFinite, kOverflow, kUnusable };

GradientScaler::GradientScaler(const GradientScalerOptions& options)
    : group_(options.group ? options.group : default_group()),
      options_(options),
      state_{.scale = rounded(options.init_scale)} {
  check(options);
}

double GradientScaler::get_scale() const {
  return options_.enabled ? state_.scale : 1;
}

at::Tensor GradientScaler::scale(const at::Tensor& loss) const {
  if (!options_.enabled) return loss;
  return loss.to(at::toOpMathType(loss.scalar_type())) * state_.scale;
}

void GradientScaler::unscale_(Optimizer& optimizer) {
  if (!options_.enabled) return;
  if (const auto found = progress_.find(&optimizer); found != progress_.end())
    throw InvalidArgument(
        std::string("unscale_() of a gradient scaler was called ") +
        (found->second.stepped ? "after step()" : "twice for one step") +
        "\n  next:    call it once, after backward(), and update() after "
        "step()");
  begin(optimizer, nullptr);
}

// A rank that throws lets the others know.
void GradientScaler::synchronize_or_tell(Optimizer& optimizer) {
  auto* const own = dynamic_cast<SynchronizesGradients*>(&optimizer);
  if (own == nullptr) return;
  try {
    own->synchronize();
  } catch (...) {
    const std::exception_ptr error = std::current_exception();
    try {
      agree(Finding::kUnusable);
    } catch (const Error&) {
      // The first error is the cause.
    }
    std::rethrow_exception(error);
  }
}

// Findings may differ between ranks, but either all ranks throw or no rank
// does.
void GradientScaler::begin(Optimizer& optimizer, ScalesGradients* dividing) {
  synchronize_or_tell(optimizer);
  const c10::AutoGradMode no_grad(false);
  const auto gradients = gradients_of(optimizer);
  Finding own = Finding::kFinite;
  if (!std::ranges::all_of(gradients, can_be_unscaled)) {
    own = Finding::kUnusable;
  } else {
    if (!std::ranges::all_of(gradients, norm_tells_overflow))
      dividing = nullptr;
    const bool finite = dividing != nullptr ? are_finite(optimizer)
                                            : divide(gradients, state_.scale);
    if (!finite) own = Finding::kOverflow;
  }
  const Finding finding = agree(own);
  if (finding == Finding::kUnusable)
    throw InvalidArgument(
        "a gradient on some rank cannot be unscaled: it is float16 itself, or "
        "bfloat16 on a GPU, or neither dense nor COO"
        "\n  next:    keep parameters in float32 and compute in float16 under "
        "autocast");
  progress_[&optimizer] = {.finite = finding == Finding::kFinite,
                           .dividing = dividing};
}

// 12 bytes, so that a checkpoint loaded on one rank only, or a missing update()
// on one rank, is an error instead of diverging replicas.
GradientScaler::Finding GradientScaler::agree(Finding own) const {
  if (group_->size() == 1) return own;
  const auto bits =
      std::bit_cast<std::int32_t>(static_cast<float>(state_.scale));
  const std::vector<std::int32_t> told{static_cast<int>(own), bits, -bits};
  group_
      ->all_reduce(view(told), ReduceOp::kMax,
                   {.label = "whether gradients are finite"})
      .wait();
  if (told[1] != -told[2])
    throw Mismatch(c10::str(
        "the gradient scalers of group \"", group_->name(),
        "\" have different scales (", state_.scale, " on rank ", group_->rank(),
        " of ", group_->size(),
        ")"
        "\n  likely:  state was loaded, or update() called, on some ranks "
        "only"
        "\n  next:    make the same calls of the scaler on every rank"));
  return static_cast<Finding>(told[0]);
}

bool GradientScaler::step(Optimizer& optimizer) {
  if (!options_.enabled) {
    optimizer.step();
    return true;
  }
  if (!progress_.contains(&optimizer))
    begin(optimizer, dynamic_cast<ScalesGradients*>(&optimizer));
  Progress& progress = progress_.at(&optimizer);
  if (progress.stepped)
    throw InvalidArgument(
        "step() of a gradient scaler was called twice for one update()"
        "\n  next:    call update() once after the step of every optimizer");
  progress.stepped = true;
  if (!progress.finite) {
    if (auto* scaling = dynamic_cast<ScalesGradients*>(&optimizer))
      scaling->forget_scaling();
    return false;
  }
  if (progress.dividing != nullptr)
    progress.dividing->scale_gradients(inverse_of(state_.scale));
  optimizer.step();
  return true;
}

void GradientScaler::update(std::optional<double> new_scale) {
  if (!options_.enabled) return;
  if (new_scale) {
    load_state_dict(
        {.scale = *new_scale, .growth_tracker = state_.growth_tracker});
    return;
  }
  if (progress_.empty())
    throw InvalidArgument(
        "update() of a gradient scaler without a step() before it");
  const bool finite = std::ranges::all_of(
      progress_, [](const auto& item) { return item.second.finite; });
  progress_.clear();
  if (!finite) {
    // If the loss itself is never finite, the scale would reach zero.
    const double less = state_.scale * options_.backoff_factor;
    state_ = {.scale = std::max<double>(rounded(less), Limits::min())};
    return;
  }
  if (++state_.growth_tracker < options_.growth_interval) return;
  const double grown = state_.scale * options_.growth_factor;
  state_ = {.scale = is_scale(grown) ? rounded(grown) : state_.scale};
}

void GradientScaler::load_state_dict(const State& state) {
  if (!is_scale(state.scale) || state.growth_tracker < 0)
    throw InvalidArgument(c10::str("a gradient scaler cannot have a scale of ",
                                   state.scale, " since ", state.growth_tracker,
                                   " steps"));
  state_ = state;
  state_.scale = rounded(state.scale);
  progress_.clear();
}

torch::serialize::OutputArchive& operator<<(
    torch::serialize::OutputArchive& archive, const GradientScaler& scaler) {
  const GradientScaler::State& state = scaler.state_dict();
  archive.write("scale", c10::IValue(state.scale));
  archive.write("growth_tracker",
                c10::IValue(static_cast<std::int64_t>(state.growth_tracker)));
  return archive;
}

torch::serialize::InputArchive& operator>>(
    torch::serialize::InputArchive& archive, GradientScaler& scaler) {
  c10::IValue scale, growth_tracker;
  archive.read("scale", scale);
  archive.read("growth_tracker", growth_tracker);
  scaler.load_state_dict(
      {.scale = scale.toDouble(),
       .growth_tracker = static_cast<int>(growth_tracker.toInt())});
  return archive;
}

}  // namespace lockstep

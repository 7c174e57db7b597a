#include "src/torch/optim/update_state.h"

#include <c10/util/StringUtil.h>
#include <torch/optim/adam.h>
#include <torch/optim/adamw.h>
#include <torch/optim/sgd.h>

#include <algorithm>
#include <cmath>
#include <tuple>
#include <unordered_set>

#include "lockstep/base/error.h"
#include "lockstep/torch/tensor_collectives.h"
#include "src/torch/tensor/tensor_fault.h"
#include "src/torch/tensor/tensor_memory.h"

namespace lockstep {
namespace {

void require(bool fits, const char* name, double value) {
  if (!fits)
    throw InvalidArgument(
        c10::str("the optimizer's ", name, " cannot be ", value));
}

void require_positive(const char* name, double value) {
  require(value >= 0 && std::isfinite(value), name, value);
}

UpdateRule rule_of(const torch::optim::SGDOptions& options) {
  require_positive("learning rate", options.lr());
  require_positive("momentum", options.momentum());
  require_positive("weight decay", options.weight_decay());
  require(std::isfinite(options.dampening()), "dampening", options.dampening());
  if (options.nesterov() &&
      (options.momentum() == 0 || options.dampening() != 0))
    throw InvalidArgument(
        "Nesterov's momentum needs a momentum above 0 and a dampening of 0");
  return SgdRule{.learning_rate = options.lr(),
                 .momentum = options.momentum(),
                 .dampening = options.dampening(),
                 .weight_decay = options.weight_decay(),
                 .nesterov = options.nesterov()};
}

template <class Options>
UpdateRule rule_of(const Options& options, AdamRule::Decay decay) {
  const auto [beta1, beta2] = options.betas();
  require_positive("learning rate", options.lr());
  require_positive("eps", options.eps());
  require_positive("weight decay", options.weight_decay());
  require(beta1 >= 0 && beta1 < 1, "first beta", beta1);
  require(beta2 >= 0 && beta2 < 1, "second beta", beta2);
  if (options.amsgrad())
    throw InvalidArgument(
        "fused and sharded optimizers do not support amsgrad"
        "\n  next:    leave it out, or use LibTorch's own Adam, unsharded");
  return AdamRule{.learning_rate = options.lr(),
                  .beta1 = beta1,
                  .beta2 = beta2,
                  .eps = options.eps(),
                  .weight_decay = options.weight_decay(),
                  .decay = decay};
}

template <class ParamState>
void write_adam(const UpdateState& from,
                std::unique_ptr<torch::optim::OptimizerParamState>& state) {
  if (!state) state = std::make_unique<ParamState>();
  auto& adam = dynamic_cast<ParamState&>(*state);
  adam.step(from.step);
  adam.exp_avg(from.numbers[0]);
  adam.exp_avg_sq(from.numbers[1]);
}

template <class ParamState>
UpdateState read_adam(const ParamState& state) {
  return {state.step(), {state.exp_avg(), state.exp_avg_sq()}};
}

[[noreturn]] void refuse(const OptimizedParameter& parameter,
                         const std::string& why, const std::string& next) {
  throw InvalidArgument(c10::str(
      "parameter ", parameter.index, " of group ", parameter.group, " (",
      parameter.tensor.scalar_type(), " ", parameter.tensor.sizes(),
      ") cannot be updated: ", why, "\n  next:    ", next));
}

void check_dense(const at::Tensor& gradient,
                 const OptimizedParameter& parameter) {
  if (gradient.layout() != at::kStrided)
    refuse(parameter, "its gradient is sparse",
           "make the layer's gradients dense (Embedding: sparse(false)), or "
           "use LibTorch's own optimizer for it");
}

bool is_wider(const at::Tensor& gradient, const OptimizedParameter& parameter) {
  const at::ScalarType type = parameter.tensor.scalar_type();
  return c10::promoteTypes(gradient.scalar_type(), type) != type;
}

// Strides of dimensions of size 1 mean nothing.
bool has_order_of(const at::Tensor& tensor, const at::Tensor& model) {
  if (tensor.sizes() != model.sizes()) return false;
  for (std::int64_t i = 0; i < tensor.dim(); ++i)
    if (tensor.size(i) != 1 && tensor.stride(i) != model.stride(i))
      return false;
  return true;
}

// `tensor` in the memory order of `model`, which is dense, and of `type`.
at::Tensor in_order_of(const at::Tensor& model, const at::Tensor& tensor,
                       at::ScalarType type) {
  if (tensor.scalar_type() == type && tensor.device() == model.device() &&
      has_order_of(tensor, model) && holds_its_elements(tensor))
    return tensor;
  return at::empty_like(model, model.options().dtype(type)).copy_(tensor);
}

}  // namespace

UpdateRule update_rule(const torch::optim::OptimizerOptions& options) {
  using Decay = AdamRule::Decay;
  if (const auto* sgd = dynamic_cast<const torch::optim::SGDOptions*>(&options))
    return rule_of(*sgd);
  if (const auto* adam =
          dynamic_cast<const torch::optim::AdamOptions*>(&options))
    return rule_of(*adam, Decay::kOfGradient);
  if (const auto* adamw =
          dynamic_cast<const torch::optim::AdamWOptions*>(&options))
    return rule_of(*adamw, Decay::kOfParameter);
  throw InvalidArgument(
      "fused and sharded optimizers support only the options of SGD, Adam "
      "and AdamW"
      "\n  next:    pass torch::optim::SGDOptions, AdamOptions or "
      "AdamWOptions");
}

UpdateState read_state(const torch::optim::OptimizerParamState* state) {
  if (const auto* sgd = dynamic_cast<const torch::optim::SGDParamState*>(state))
    return {sgd->momentum_buffer().defined() ? 1 : 0,
            {sgd->momentum_buffer(), at::Tensor()}};
  if (const auto* adam =
          dynamic_cast<const torch::optim::AdamParamState*>(state))
    return read_adam(*adam);
  if (const auto* adamw =
          dynamic_cast<const torch::optim::AdamWParamState*>(state))
    return read_adam(*adamw);
  return {};
}

void write_state(const UpdateState& from, const UpdateRule& rule,
                 std::unique_ptr<torch::optim::OptimizerParamState>& state) {
  if (const auto* adam = std::get_if<AdamRule>(&rule)) {
    if (adam->decay == AdamRule::Decay::kOfGradient)
      return write_adam<torch::optim::AdamParamState>(from, state);
    return write_adam<torch::optim::AdamWParamState>(from, state);
  }
  if (!state) state = std::make_unique<torch::optim::SGDParamState>();
  dynamic_cast<torch::optim::SGDParamState&>(*state).momentum_buffer(
      from.numbers[0]);
}

std::vector<OptimizedParameter> parameters_of(
    const std::vector<torch::optim::OptimizerParamGroup>& groups) {
  std::vector<OptimizedParameter> parameters;
  std::unordered_set<const c10::TensorImpl*> seen;
  for (std::size_t group = 0; group < groups.size(); ++group) {
    const auto& tensors = groups[group].params();
    for (std::size_t index = 0; index < tensors.size(); ++index)
      if (seen.insert(tensors[index].unsafeGetTensorImpl()).second)
        parameters.push_back({tensors[index], group, index});
  }
  return parameters;
}

std::vector<at::Tensor> tensors_of(
    std::span<const OptimizedParameter> parameters) {
  std::vector<at::Tensor> tensors;
  for (const auto& parameter : parameters) tensors.push_back(parameter.tensor);
  return tensors;
}

std::optional<ParameterPair> sharing_memory(
    std::span<const OptimizedParameter> parameters) {
  struct Extent {
    const std::byte* begin;
    const std::byte* end;
    std::size_t parameter;
  };
  std::vector<Extent> extents;
  for (std::size_t i = 0; i < parameters.size(); ++i) {
    const at::Tensor& tensor = parameters[i].tensor;
    if (tensor.is_meta() || tensor.layout() != at::kStrided ||
        !tensor.is_non_overlapping_and_dense() || tensor.nbytes() == 0)
      continue;
    const auto* const begin =
        static_cast<const std::byte*>(tensor.const_data_ptr());
    extents.push_back({begin, begin + tensor.nbytes(), i});
  }
  std::ranges::sort(extents, [](const Extent& a, const Extent& b) {
    return std::tie(a.begin, a.parameter) < std::tie(b.begin, b.parameter);
  });
  // If any overlap, two neighbours do. Returns the smallest pair, so that all
  // ranks name the same one, whatever their addresses.
  std::optional<ParameterPair> least;
  for (std::size_t i = 1; i < extents.size(); ++i) {
    if (extents[i].begin >= extents[i - 1].end) continue;
    const ParameterPair pair =
        std::minmax(extents[i - 1].parameter, extents[i].parameter);
    least = std::min(pair, least.value_or(pair));
  }
  return least;
}

ParameterSize size_of_updatable(const OptimizedParameter& parameter) {
  const at::Tensor& tensor = parameter.tensor;
  if (const auto fault = fault_of_moved(tensor))
    refuse(parameter, "it " + fault->why,
           "use LibTorch's own optimizer for it");
  if (tensor.is_complex())
    refuse(parameter, "it " + fault_of_type(tensor.scalar_type()).why,
           fault_of_type(tensor.scalar_type()).next);
  if (!at::isFloatingType(tensor.scalar_type()) || tensor.element_size() > 8 ||
      tensor.element_size() < 2)
    refuse(parameter,
           "the kernels support only Float, Double, Half and BFloat16",
           "convert it with to()");
  if (tensor.is_cuda() && tensor.element_size() < 4)
    refuse(parameter, "the kernels for GPUs support only Float and Double",
           "keep parameters in float32, and compute in 16 bits with autocast");
  if (!tensor.is_non_overlapping_and_dense())
    refuse(parameter, "there are gaps or overlaps in its memory",
           "make it from a tensor of its own: tensor.clone()");
  if (!holds_its_elements(tensor))
    refuse(parameter, "it is negated, conjugated or zero without memory",
           "make it from a tensor of its own: tensor.clone()");
  return {.elements = static_cast<std::size_t>(tensor.numel()),
          .type = data_type_of(tensor.scalar_type()),
          .device = buffer_device(tensor)};
}

at::ScalarType state_scalar_type(const at::Tensor& parameter) {
  return scalar_type_of(state_type(data_type_of(parameter.scalar_type())));
}

bool has_usable_gradient(const OptimizedParameter& parameter) {
  const at::Tensor& gradient = parameter.tensor.grad();
  return !gradient.defined() ||
         (gradient.layout() == at::kStrided && !is_wider(gradient, parameter));
}

void check_gradient(const OptimizedParameter& parameter) {
  const at::Tensor& gradient = parameter.tensor.grad();
  if (!gradient.defined()) return;
  check_dense(gradient, parameter);
  if (is_wider(gradient, parameter))
    refuse(parameter, "the type of its gradient is wider than its own",
           "use FusedSGD, FusedAdam or FusedAdamW, which take float32 "
           "gradients of 16-bit parameters, or LibTorch's own optimizer");
}

at::Tensor gradient_of(const OptimizedParameter& parameter) {
  check_gradient(parameter);
  return gradient_of(parameter, parameter.tensor.scalar_type());
}

at::Tensor gradient_of(const OptimizedParameter& parameter,
                       at::ScalarType type) {
  const at::Tensor& gradient = parameter.tensor.grad();
  if (!gradient.defined()) return gradient;
  check_dense(gradient, parameter);
  return in_order_of(parameter.tensor, gradient, type);
}

at::Tensor state_for(const OptimizedParameter& parameter,
                     const at::Tensor& state) {
  if (!state.sizes().equals(parameter.tensor.sizes()))
    refuse(parameter, "its loaded state has another shape",
           "load the state that was saved for the same model");
  return in_order_of(parameter.tensor, state,
                     state_scalar_type(parameter.tensor));
}

at::Tensor in_memory_order(const at::Tensor& dense) {
  return dense.as_strided({dense.numel()}, {1});
}

std::byte* bytes_at(const at::Tensor& dense, std::size_t begin) {
  LOCKSTEP_CHECK(holds_its_elements(dense),
                 "the memory of a tensor was taken for its elements");
  return static_cast<std::byte*>(dense.data_ptr()) +
         begin * static_cast<std::size_t>(dense.element_size());
}

}  // namespace lockstep

// Means and variances of the ranks are combined, not sums of squares: those
// lose all digits where the mean is far from zero (Chan, Golub and LeVeque,
// 1983). Each rank combines the same numbers in the same order, in float64.
//
// LibTorch's kernels do the work on elements: statistics of a rank, the linear
// map of each channel, and the two sums of the backward pass, which are what
// batch normalization in evaluation gives for its weight and bias.
#include "src/torch/ddp/group_normalization.h"

#include <ATen/ATen.h>
#include <torch/csrc/autograd/custom_function.h>

#include <optional>
#include <tuple>
#include <vector>

#include "lockstep/base/error.h"
#include "lockstep/torch/tensor_collectives.h"

namespace lockstep {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

at::ScalarType computing_type(const at::Tensor& input) {
  return input.scalar_type() == at::kDouble ? at::kDouble : at::kFloat;
}

// `values`, one per channel, in a shape that broadcasts with `input`.
at::Tensor by_channel(const at::Tensor& values, const at::Tensor& input) {
  std::vector<std::int64_t> shape(static_cast<std::size_t>(input.dim()), 1);
  shape[1] = values.numel();
  return values.to(input.scalar_type()).reshape(shape);
}

at::Tensor converted(const at::Tensor& tensor, at::ScalarType type) {
  return tensor.defined() ? tensor.to(type) : tensor;
}

// Saved for the backward pass besides tensors.
struct GroupOfPass : torch::CustomClassHolder {
  explicit GroupOfPass(std::shared_ptr<ProcessGroup> of_pass)
      : group(std::move(of_pass)) {}
  std::shared_ptr<ProcessGroup> group;
};

// Sums over this rank's samples: of the output's gradient, and of the gradient
// times the normalized input.
struct OwnSums {
  at::Tensor of_gradient, of_product;
};

struct Saved {
  at::Tensor input, weight, mean, variance;  // computing type
  double eps;
};

OwnSums own_sums(const at::Tensor& gradient, const Saved& saved) {
  if (saved.input.numel() == 0)
    return {at::zeros_like(saved.mean), at::zeros_like(saved.mean)};
  // Without saved statistics the kernels use the mean and variance of the
  // arguments before them. Those of GPUs accept empty tensors alone for that.
  const at::Tensor none = at::empty({0}, saved.mean.options());
  auto [unused, of_product, of_gradient] = at::native_batch_norm_backward(
      gradient, saved.input, saved.weight, saved.mean, saved.variance, none,
      none, /*train=*/false, saved.eps, {false, true, true});
  return {of_gradient, of_product};
}

// weight / sigma * (dy - mean(dy) - xhat * mean(dy * xhat)), where the means
// are over all ranks.
at::Tensor input_gradient(const at::Tensor& gradient, const Saved& saved,
                          const at::Tensor& means) {
  const auto per_sigma = (saved.variance.to(at::kDouble) + saved.eps).rsqrt();
  auto scale = per_sigma;
  if (saved.weight.defined()) scale = scale * saved.weight.to(at::kDouble);
  const at::Tensor& input = saved.input;
  return (input - by_channel(saved.mean, input))
      .mul_(by_channel(-scale * per_sigma * means[1], input))
      .sub_(by_channel(scale * means[0], input))
      .addcmul_(gradient, by_channel(scale, input));
}

class Normalize : public torch::autograd::Function<Normalize> {
 public:
  // Autograd finds tensors only among the arguments themselves.
  // NOLINTNEXTLINE(readability-function-size)
  static at::Tensor forward(AutogradContext* context, const at::Tensor& input,
                            const std::optional<at::Tensor>& own_weight,
                            const std::optional<at::Tensor>& own_bias,
                            const GroupMoments& moments,
                            const NormalizeOptions& options) {
    const at::Tensor weight = own_weight.value_or(at::Tensor());
    const at::Tensor bias = own_bias.value_or(at::Tensor());
    const at::ScalarType type = computing_type(input);
    const at::Tensor mean = moments.mean.to(type);
    const at::Tensor variance = moments.variance.to(type);
    context->save_for_backward({input, weight, mean, variance});
    context->saved_data["eps"] = options.eps;
    context->saved_data["count"] = moments.count;
    context->saved_data["group"] = c10::IValue::make_capsule(
        c10::make_intrusive<GroupOfPass>(options.group));
    if (input.numel() == 0) return at::empty_like(input);
    return std::get<0>(at::native_batch_norm(
                           input.to(type), converted(weight, type),
                           converted(bias, type), mean, variance,
                           /*training=*/false, /*momentum=*/0, options.eps))
        .to(input.scalar_type());
  }

  static variable_list backward(AutogradContext* context,
                                const variable_list& gradients) {
    if (c10::GradMode::is_enabled())
      throw InvalidArgument(
          "SyncBatchNorm: backward() with create_graph is not possible, "
          "since the exchange between ranks is not part of the graph"
          "\n  next:    omit create_graph, or do not synchronize");
    const variable_list tensors = context->get_saved_variables();
    const at::ScalarType type = computing_type(tensors[0]);
    const Saved saved{.input = tensors[0].to(type),
                      .weight = converted(tensors[1], type),
                      .mean = tensors[2],
                      .variance = tensors[3],
                      .eps = context->saved_data["eps"].toDouble()};
    // A gradient may be expanded from one number.
    const at::Tensor gradient =
        gradients[0].to(type).contiguous(saved.input.suggest_memory_format());
    const OwnSums own = own_sums(gradient, saved);
    // Even if this rank's input needs no gradient: another rank's may.
    const at::Tensor means = means_over_ranks(context, own);
    at::Tensor of_input;
    if (context->needs_input_grad(0))
      of_input =
          input_gradient(gradient, saved, means).to(tensors[0].scalar_type());
    return {of_input, like(tensors[1], own.of_product),
            like(tensors[1], own.of_gradient), at::Tensor(), at::Tensor()};
  }

 private:
  // Means of the gradient, and of the gradient times the normalized input.
  static at::Tensor means_over_ranks(AutogradContext* context,
                                     const OwnSums& own) {
    const auto group = c10::static_intrusive_pointer_cast<GroupOfPass>(
        context->saved_data["group"].toCapsule());
    const at::Tensor sums =
        at::stack({own.of_gradient, own.of_product}).to(at::kDouble);
    group->group
        ->all_reduce(view(sums), ReduceOp::kSum,
                     {.label = "backward pass of SyncBatchNorm"})
        .wait();
    return sums / context->saved_data["count"].toDouble();
  }

  static at::Tensor like(const at::Tensor& parameter, const at::Tensor& sums) {
    return parameter.defined() ? sums.to(parameter.scalar_type())
                               : at::Tensor();
  }
};

// Mean, variance and count of this rank's numbers, in one row.
at::Tensor own_moments(const at::Tensor& input) {
  const std::int64_t features = input.size(1);
  const at::Tensor row =
      at::zeros({2 * features + 1}, input.options().dtype(at::kDouble));
  if (input.numel() == 0) return row;
  const auto [mean, variance] =
      at::batch_norm_update_stats(input.to(computing_type(input)), {}, {}, 0);
  row.narrow(0, 0, features).copy_(mean);
  row.narrow(0, features, features).copy_(variance);
  row[2 * features] = input.numel() / features;
  return row;
}

}  // namespace

GroupMoments gather_moments(ProcessGroup& group, const at::Tensor& input) {
  const at::NoGradGuard no_grad;
  const std::int64_t features = input.size(1);
  const at::Tensor own = own_moments(input);
  const at::Tensor all =
      at::empty({group.size(), 2 * features + 1}, own.options());
  group
      .all_gather(view(own), view(all),
                  {.label = "forward pass of SyncBatchNorm"})
      .wait();
  const at::Tensor counts = all.narrow(1, 2 * features, 1);
  const auto count = counts.sum().item<double>();
  if (count < 2)
    throw InvalidArgument(c10::str(
        "SyncBatchNorm: all ", group.size(), " ranks of group \"", group.name(),
        "\" together have ", count,
        " numbers per feature, too few for a variance"
        "\n  likely:  a last batch that is too short"
        "\n  next:    drop it, or call eval() for passes without training"));
  const at::Tensor shares = counts / count;
  const at::Tensor means = all.narrow(1, 0, features);
  const at::Tensor mean = (shares * means).sum(0);
  const at::Tensor variance =
      (shares * (all.narrow(1, features, features) + (means - mean).square()))
          .sum(0);
  return {.mean = mean, .variance = variance, .count = count};
}

at::Tensor normalize(const at::Tensor& input, const Affine& affine,
                     const GroupMoments& moments,
                     const NormalizeOptions& options) {
  // Autograd does not accept undefined tensors as variables.
  const auto if_defined = [](const at::Tensor& tensor) {
    return tensor.defined() ? std::optional(tensor) : std::nullopt;
  };
  return Normalize::apply(input, if_defined(affine.weight),
                          if_defined(affine.bias), moments, options);
}

}  // namespace lockstep

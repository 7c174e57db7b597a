#include <c10/core/GradMode.h>
#include <c10/util/StringUtil.h>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <memory>
#include <optional>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <variant>
#include <vector>

#include "lockstep/base/error.h"
#include "lockstep/comm/groups.h"
#include "lockstep/torch/comm_hooks.h"
#include "lockstep/torch/horovod.h"
#include "lockstep/torch/tensor_collectives.h"
#include "src/base/first_line.h"
#include "src/comm/group/same_text.h"
#include "src/torch/compare/replica_watch.h"
#include "src/torch/ddp/replicate.h"
#include "src/torch/frontends/horovod/adasum.h"
#include "src/torch/frontends/horovod/passes_per_step.h"
#include "src/torch/gradient/join_announcements.h"
#include "src/torch/tensor/module_tensors.h"

namespace lockstep::horovod {
namespace {

std::vector<at::Tensor> trained_by(const torch::optim::Optimizer& optimizer) {
  std::vector<at::Tensor> trained;
  for (const auto& group : optimizer.param_groups())
    for (const at::Tensor& tensor : group.params())
      if (tensor.requires_grad()) trained.push_back(tensor);
  return trained;
}

// In the order of names, so that ranks pair them by name. InvalidArgument for
// one that has none.
std::vector<NamedParameter> with_names(
    const std::vector<at::Tensor>& trained,
    const torch::OrderedDict<std::string, at::Tensor>& names) {
  std::unordered_map<const c10::TensorImpl*, std::string> name_of;
  for (const auto& item : names)
    name_of.emplace(item.value().unsafeGetTensorImpl(), item.key());
  std::vector<NamedParameter> named;
  for (const at::Tensor& tensor : trained) {
    const auto name = name_of.find(tensor.unsafeGetTensorImpl());
    if (name == name_of.end())
      throw InvalidArgument(
          "DistributedOptimizer: parameter " +
          std::to_string(named.size() + 1) +
          " of the optimizer is not among the " + std::to_string(names.size()) +
          " named ones\n"
          "  next:    give named_parameters() of the whole model that the "
          "optimizer trains");
    named.push_back({name->second, tensor});
  }
  std::ranges::sort(named, {}, &NamedParameter::name);
  return named;
}

NamedTensorList named_tensors(
    const torch::optim::Optimizer& optimizer,
    const torch::OrderedDict<std::string, at::Tensor>& names) {
  NamedTensorList named;
  for (const NamedParameter& one : with_names(trained_by(optimizer), names))
    named.emplace_back(one.name, one.tensor);
  return named;
}

const char* name_of(Compression compression) {
  switch (compression) {
    case Compression::kNone:
      return "none";
    case Compression::kFp16:
      return "fp16";
    case Compression::kBf16:
      return "bf16";
  }
  return "";
}

std::string_view name_of(const StepOp& op) {
  const auto* reduction = std::get_if<ReduceOp>(&op);
  return reduction ? name_of(*reduction) : "adasum";
}

std::string describe(const DistributedOptimizerOptions& options) {
  return c10::str("op ", name_of(options.op), "\ncompression ",
                  name_of(options.compression), "\nbackward_passes_per_step ",
                  options.backward_passes_per_step,
                  "\ngradient_predivide_factor ",
                  options.gradient_predivide_factor, "\nsparse_as_dense ",
                  options.sparse_as_dense, "\n");
}

std::shared_ptr<ProcessGroup> group_of(
    const DistributedOptimizerOptions& options) {
  return options.group ? options.group : default_group();
}

void check_factor(const DistributedOptimizerOptions& options) {
  const double factor = options.gradient_predivide_factor;
  if (!(factor > 0) || !std::isfinite(factor))
    throw InvalidArgument(
        c10::str("gradient_predivide_factor is ", factor,
                 "; gradients can be divided by finite numbers above 0 only"));
  if (factor != 1 && options.op != StepOp(ReduceOp::kAverage))
    throw InvalidArgument(
        "gradient_predivide_factor is part of an average, and op is none\n"
        "  next:    leave it at 1, or set op to ReduceOp::kAverage");
}

// What one rank refuses is part of what ranks compare, so that none waits for
// it.
std::vector<NamedParameter> agreed_parameters(
    const torch::optim::Optimizer& optimizer,
    const torch::OrderedDict<std::string, at::Tensor>& names,
    const DistributedOptimizerOptions& options) {
  std::vector<NamedParameter> parameters;
  std::string text = describe(options);
  std::optional<InvalidArgument> refusal;
  try {
    parameters = with_names(trained_by(optimizer), names);
  } catch (const InvalidArgument& error) {
    refusal = error;
    text += "refused: " + first_line(error.what()) + "\n";
  }
  for (const NamedParameter& parameter : parameters)
    text += description_of_parameter(parameter.name, parameter.tensor);
  const auto group = group_of(options);
  JoinAnnouncements::of(group)->announce(
      HorovodCall::other("making a DistributedOptimizer"));
  check_same_text(
      *group, text,
      {.what = "make a DistributedOptimizer of different things",
       .likely = "the model, what of it is frozen, or an option is not the "
                 "same on every rank",
       .next = "make it of parameters of the same names, types and shapes, and "
               "with the same options, on every rank"});
  if (refusal) throw *refusal;
  check_factor(options);
  if (options.op == StepOp(Adasum{}))
    check_ranks_of_adasum(*group, "DistributedOptimizer with op = Adasum");
  return parameters;
}

// Averages by two divisions, one on each side of the sum.
class PredivideHook final : public CommHook {
 public:
  explicit PredivideHook(double factor) : factor_(factor) {}

  HookProgress start(const GradBucket& bucket) override {
    bucket.buffer.mul_(1 / factor_);
    Work sum = bucket.group->all_reduce(
        view(bucket.buffer), ReduceOp::kSum,
        {.label = "gradients that are divided before"});
    return followed_by(
        {std::move(sum)},
        [buffer = bucket.buffer, rest = factor_ / bucket.group->size()] {
          buffer.mul_(rest);
        });
  }

 private:
  double factor_;
};

// What reduces gradients in the place of the plain average or sum; null where
// that does.
std::shared_ptr<CommHook> hook_for(const DistributedOptimizerOptions& options) {
  std::shared_ptr<CommHook> hook;
  if (options.gradient_predivide_factor != 1)
    hook = std::make_shared<PredivideHook>(options.gradient_predivide_factor);
  switch (options.compression) {
    case Compression::kNone:
      return hook;
    case Compression::kFp16:
      return fp16_compress_wrapper(hook ? hook : allreduce_hook());
    case Compression::kBf16:
      return bf16_compress_wrapper(hook ? hook : allreduce_hook());
  }
  return hook;
}

enum class Steps { kOfReducedGradients, kCombined };

ReducerOptions step_reducer_options(const DistributedOptimizerOptions& options,
                                    Steps steps) {
  const auto* op = std::get_if<ReduceOp>(&options.op);
  return {.find_unused_parameters = true,
          .average_gradients = steps == Steps::kOfReducedGradients,
          .sparse_as_dense = options.sparse_as_dense,
          .op = op ? *op : ReduceOp::kAverage};
}

// That in which a change of `tensor` travels.
at::ScalarType compressed_type(const at::Tensor& tensor,
                               Compression compression) {
  switch (compression) {
    case Compression::kNone:
      return tensor.scalar_type();
    case Compression::kFp16:
      return at::kHalf;
    case Compression::kBf16:
      return at::kBFloat16;
  }
  return tensor.scalar_type();
}

}  // namespace

void StepGradients::drop_repeated_parameters(
    torch::optim::Optimizer& optimizer) {
  lockstep::drop_repeated_parameters(optimizer);
}

StepGradients::StepGradients(
    const torch::optim::Optimizer& optimizer,
    const torch::OrderedDict<std::string, at::Tensor>& names,
    const DistributedOptimizerOptions& options)
    : group_(group_of(options)),
      combines_steps_(options.op == StepOp(Adasum{}) && group_->size() > 1),
      compression_(options.compression),
      passes_(std::make_shared<PassesPerStep>(
          agreed_parameters(optimizer, names, options), group_,
          step_reducer_options(options, combines_steps_
                                            ? Steps::kCombined
                                            : Steps::kOfReducedGradients),
          options.backward_passes_per_step)),
      watch_(std::make_shared<ReplicaWatch>(
          options.compare_replicas_every, group_,
          [named = named_tensors(optimizer, names)] { return named; })),
      names_(names),
      trained_(trained_by(optimizer)) {
  if (combines_steps_) {
    for (NamedParameter& parameter : with_names(trained_, names_))
      in_order_.push_back(std::move(parameter.tensor));
    return;
  }
  passes_->reducer().compare_replicas_by(watch_);
  if (auto hook = hook_for(options))
    passes_->reducer().register_comm_hook(std::move(hook));
}

void StepGradients::synchronize(const torch::optim::Optimizer& optimizer) {
  check_trained(optimizer);
  if (!combines_steps_) passes_->synchronize();
}

bool StepGradients::are_synchronized() const {
  return combines_steps_ || passes_->are_synchronized();
}

void StepGradients::begin_anew() { passes_->begin_anew(); }

void StepGradients::begin_own_step(const torch::optim::Optimizer& optimizer) {
  check_trained(optimizer);
  JoinAnnouncements::of(group_)->announce(
      HorovodCall::other("a step with Adasum"));
  watch_->compare(*group_);
  before_.clear();
  for (const at::Tensor& tensor : in_order_)
    before_.push_back(tensor.detach().clone(at::MemoryFormat::Contiguous));
}

void StepGradients::combine_steps() {
  const c10::NoGradGuard no_grad;
  std::vector<at::Tensor> changes;
  for (std::size_t i = 0; i < in_order_.size(); ++i)
    changes.push_back((in_order_[i] - before_[i])
                          .to(compressed_type(in_order_[i], compression_))
                          .contiguous());
  combine_by_adasum(*group_, changes);
  for (std::size_t i = 0; i < in_order_.size(); ++i)
    in_order_[i].copy_(before_[i] + changes[i].to(before_[i].scalar_type()));
  before_.clear();
}

void StepGradients::abandon_step() noexcept {
  group_->abort("rank " + std::to_string(group_->rank()) +
                " left its own step, with changes still to be combined by "
                "Adasum, by an exception; read its log");
  before_.clear();
}

// Precedes every step, so it makes no list where nothing has changed.
void StepGradients::check_trained(
    const torch::optim::Optimizer& optimizer) const {
  std::size_t count = 0;
  bool same = true;
  for (const auto& group : optimizer.param_groups())
    for (const at::Tensor& tensor : group.params()) {
      if (!tensor.requires_grad()) continue;
      same = same && count < trained_.size() && trained_[count].is_same(tensor);
      ++count;
    }
  if (!same || count != trained_.size()) refuse_change(trained_by(optimizer));
}

std::string StepGradients::name_of(const at::Tensor& parameter) const {
  for (const auto& item : names_)
    if (item.value().is_same(parameter)) return "parameter " + item.key();
  return "a parameter that is not among named_parameters";
}

void StepGradients::refuse_change(
    const std::vector<at::Tensor>& trained_now) const {
  const auto first_only_in = [](const std::vector<at::Tensor>& some,
                                const std::vector<at::Tensor>& others) {
    return std::ranges::find_if(some, [&](const at::Tensor& one) {
      return std::ranges::none_of(
          others, [&](const at::Tensor& other) { return other.is_same(one); });
    });
  };
  std::string change = "parameters come in another order, or twice";
  if (const auto gone = first_only_in(trained_, trained_now);
      gone != trained_.end())
    change = name_of(*gone) + " is trained no more";
  if (const auto added = first_only_in(trained_now, trained_);
      added != trained_now.end())
    change = name_of(*added) + " is trained now, and its gradient not reduced";
  throw InvalidArgument(
      "DistributedOptimizer: the optimizer trains other parameters than when "
      "it was made: " +
      change +
      "\n  next:    make a DistributedOptimizer anew after add_param_group() "
      "and after freezing or unfreezing parameters");
}

}  // namespace lockstep::horovod

#include "lockstep/torch/logical_shards.h"

#include <ATen/OpMathType.h>
#include <ATen/ops/_foreach_mul.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/zeros_like.h>
#include <c10/core/GradMode.h>
#include <c10/util/StringUtil.h>

#include <algorithm>
#include <bit>
#include <exception>
#include <utility>

#include "lockstep/base/error.h"
#include "lockstep/comm/groups.h"
#include "lockstep/torch/tensor_collectives.h"
#include "src/comm/group/group_core.h"
#include "src/data/sample_random.h"
#include "src/torch/ddp/replicate.h"
#include "src/torch/gradient/autograd_hooks.h"
#include "src/torch/gradient/pass_errors.h"
#include "src/torch/optim/tree_reduction.h"
#include "src/torch/optim/update_state.h"
#include "src/torch/tensor/heap_allocator.h"
#include "src/torch/tensor/module_tensors.h"
#include "src/torch/tensor/tensor_lists.h"
#include "src/torch/tensor/tensor_memory.h"

namespace lockstep {
namespace {

using Tensors = std::vector<at::Tensor>;

bool is_power_of_two(int number) {
  return number > 0 && std::has_single_bit(static_cast<unsigned>(number));
}

// The type in which `type` is summed or compared: it rounds 16-bit numbers
// once, at the end, and not after each addition.
at::ScalarType sum_type(at::ScalarType type) {
  return type == at::kBool ? at::kByte : at::toOpMathType(type);
}

// A copy, or `gradient` itself if it is exclusive.
at::Tensor own(const at::Tensor& gradient) {
  const at::Tensor sum = gradient.to(sum_type(gradient.scalar_type()));
  return is_exclusive(sum) ? sum : sum.clone();
}

void check_same_options(ProcessGroup& group, int count, std::uint64_t seed) {
  if (group.size() == 1) return;
  const auto number = static_cast<std::int64_t>(seed);
  std::vector<std::int64_t> least_and_most{count, -count, number, ~number};
  group
      .all_reduce(view(least_and_most), ReduceOp::kMax,
                  {.label = "options of logical shards"})
      .wait();
  if (least_and_most[0] == -least_and_most[1] &&
      least_and_most[2] == ~least_and_most[3])
    return;
  throw Mismatch(c10::str(
      "the ranks of group \"", group.name(),
      "\" have different options of logical shards (", count, " of seed ", seed,
      " on rank ", group.rank(), " of ", group.size(),
      ")\n  next:    give the same count and seed on every rank"));
}

// Throws for a buffer that can be neither averaged nor compared.
void check_buffers(const torch::nn::Module& module) {
  for (const auto& item : module.named_buffers()) try {
      if (item.value().defined()) data_type_of(item.value().scalar_type());
    } catch (const InvalidArgument& error) {
      throw InvalidArgument(
          "LogicalShards: buffer " + item.key() +
          " can be neither averaged nor compared: " + error.what());
    }
}

// Copies `from` over `to`, which may be of another type.
void copy_over(const Tensors& to, const Tensors& from) {
  for (std::size_t i = 0; i < to.size(); ++i) copy_elements(from[i], to[i]);
}

}  // namespace

// By parameter, the mark of the passes so far; the largest counts.
struct LogicalShards::Marks {
  enum Mark : std::int32_t { kMissing, kDense, kSparse };
  std::vector<std::int32_t> of_parameter;
  void raise(std::size_t parameter, Mark mark) {
    of_parameter[parameter] =
        std::max<std::int32_t>(of_parameter[parameter], mark);
  }
};

void check_logical_shards(int count, int ranks) {
  if (is_power_of_two(count) && is_power_of_two(ranks) && count >= ranks)
    return;
  throw InvalidArgument(c10::str(
      count, " logical shards on ", ranks,
      " ranks do not form a balanced tree in which each rank has one branch"
      "\n  next:    use 1, 2, 4, 8, … ranks, and 1, 2, 4, … shards per rank"));
}

LogicalShards::LogicalShards(std::shared_ptr<const torch::nn::Module> module,
                             const LogicalShardsOptions& options)
    : module_(std::move(module)),
      group_(options.group ? options.group : default_group()),
      count_(options.count),
      seed_(options.seed) {
  if (!module_) throw InvalidArgument("LogicalShards: the module is null");
  check_same_options(*group_, count_, seed_);
  check_logical_shards(count_, group_->size());
  check_same_model(*group_, *module_);
  check_one_device(*module_);
  lockstep::check_dense(*module_);
  check_buffers(*module_);
  for (const auto& item : distinct_named_parameters(*module_))
    if (item.value().requires_grad()) {
      size_of_updatable({.tensor = item.value(), .index = names_.size()});
      parameters_.push_back(item.value());
      names_.push_back(item.key());
    }
  if (parameters_.empty())
    throw InvalidArgument(
        "LogicalShards: no parameter of the module requires a gradient");
  if (group_->size() == 1) return;
  claim_ =
      std::make_unique<GradientHooks>(parameters_, names_, [](std::size_t) {});
  if (parameters_.front().is_cpu())
    allocate_tensors_from(group_->core().heap());
  broadcast_tensors(*group_, parameters_and_buffers(*module_), 0);
}

LogicalShards::~LogicalShards() = default;

void LogicalShards::run(const std::function<void(const LogicalShard&)>& pass) {
  const Tensors buffers = module_->buffers();
  Tensors before;
  for (const at::Tensor& buffer : buffers)
    before.push_back(buffer.detach().clone());
  Marks marks{std::vector<std::int32_t>(parameters_.size(), Marks::kMissing)};
  TreeSum sum;
  int index = first();
  try {
    for (const int end = index + own_count(); index < end; ++index) {
      run_pass(pass, index);
      const c10::AutoGradMode no_grad(false);
      sum.add(leaves_of_pass(buffers, marks));
      copy_over(buffers, before);
    }
  } catch (...) {
    if (group_->size() > 1)
      group_->abort(c10::str(
          "the pass of logical shard ", index, " on rank ", group_->rank(),
          " threw: ", text_of_exception(std::current_exception())));
    const c10::AutoGradMode no_grad(false);
    copy_over(buffers, before);  // for a caller that repeats the step
    throw;
  }
  ++step_;
  const c10::AutoGradMode no_grad(false);
  average(sum.take(), buffers, marks);
}

void LogicalShards::run_pass(
    const std::function<void(const LogicalShard&)>& pass, int index) {
  for (at::Tensor& parameter : parameters_) parameter.mutable_grad().reset();
  SampleRandom random(seed_, static_cast<std::uint64_t>(step_),
                      static_cast<std::uint64_t>(index));
  pass({.index = index, .seed = random.next()});
}

// Buffers are divided before the sum, since a sum of numbers near the end of
// their range might overflow. Gradients are divided after the sum, since small
// ones might underflow.
Tensors LogicalShards::leaves_of_pass(const Tensors& buffers, Marks& marks) {
  Tensors leaves;
  for (std::size_t i = 0; i < parameters_.size(); ++i) {
    at::Tensor& parameter = parameters_[i];
    const bool sparse =
        parameter.grad().defined() && parameter.grad().layout() != at::kStrided;
    if (sparse)
      parameter.mutable_grad().reset();  // refused once all ranks know
    const at::ScalarType type = gradient_type(parameter);
    at::Tensor gradient = gradient_of({.tensor = parameter}, type);
    parameter.mutable_grad().reset();
    marks.raise(i, sparse               ? Marks::kSparse
                   : gradient.defined() ? Marks::kDense
                                        : Marks::kMissing);
    if (!gradient.defined())
      gradient = at::zeros_like(parameter, at::dtype(type));
    leaves.push_back(own(gradient));
  }
  for (const at::Tensor& buffer : buffers) {
    const at::Tensor leaf =
        at::empty_like(buffer,
                       buffer.options().dtype(sum_type(buffer.scalar_type())),
                       at::MemoryFormat::Contiguous)
            .copy_(buffer);
    if (is_summed(leaf)) leaf.mul_(1.0 / count_);
    leaves.push_back(leaf);
  }
  return leaves;
}

void LogicalShards::average(Tensors sum, const Tensors& buffers, Marks& marks) {
  if (group_->size() > 1)
    group_
        ->all_reduce(view(marks.of_parameter), ReduceOp::kMax,
                     {.label = "which parameters logical shards used"})
        .wait();
  check_dense(marks);
  tree_reduce(*group_, sum);
  for (const auto& list :
       by_device_and_type(at::TensorList(sum).slice(0, parameters_.size())))
    at::_foreach_mul_(list, 1.0 / count_);
  for (std::size_t i = 0; i < parameters_.size(); ++i)
    if (marks.of_parameter[i] != Marks::kMissing)
      parameters_[i].mutable_grad() = sum[i].to(gradient_type(parameters_[i]));
  for (std::size_t i = 0; i < buffers.size(); ++i)
    copy_elements(sum[parameters_.size() + i], buffers[i]);
}

void LogicalShards::check_dense(const Marks& marks) const {
  for (std::size_t i = 0; i < names_.size(); ++i)
    if (marks.of_parameter[i] == Marks::kSparse)
      throw InvalidArgument(
          "logical shards cannot average the sparse gradient of " + names_[i] +
          "\n  next:    make it dense: EmbeddingOptions::sparse(false)");
}

}  // namespace lockstep

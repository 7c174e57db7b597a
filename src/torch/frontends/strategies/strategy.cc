#include <ATen/ExpandUtils.h>
#include <ATen/OpMathType.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/empty.h>
#include <c10/core/DeviceGuard.h>
#include <c10/core/GradMode.h>
#include <c10/util/StringUtil.h>

#include <cstring>
#include <span>
#include <string>

#include "lockstep/base/error.h"
#include "lockstep/comm/groups.h"
#include "lockstep/torch/strategies.h"
#include "lockstep/torch/tensor_collectives.h"
#include "src/base/tf_config.h"
#include "src/torch/ddp/replicate.h"
#include "src/torch/device/replica_devices.h"
#include "src/torch/frontends/strategies/replica_threads.h"
#include "src/torch/tensor/tensor_memory.h"

namespace lockstep::strategies {
namespace {

void check_against(const ProcessGroup& group, const TfConfig& config) {
  if (group.rank() == config.rank && group.size() == config.world_size) return;
  throw InvalidArgument(
      "TF_CONFIG makes this process rank " + std::to_string(config.rank) +
      " of " + std::to_string(config.world_size) +
      ", but its process group was made with rank " +
      std::to_string(group.rank()) + " of " + std::to_string(group.size()) +
      "\n  next:    unset TF_CONFIG, or leave init_process_group() to the "
      "strategy");
}

// The losses times the weights, by TensorFlow's rule: where their numbers of
// dimensions differ by one, the last dimension is dropped or added.
at::Tensor weighted(const at::Tensor& losses, const at::Tensor& weights) {
  if (!weights.defined()) return losses;
  at::Tensor fitted = weights;
  if (fitted.dim() == losses.dim() + 1 && fitted.size(-1) == 1)
    fitted = fitted.squeeze(-1);
  else if (fitted.dim() > 0 && fitted.dim() == losses.dim() - 1)
    fitted = fitted.unsqueeze(-1);
  if (!at::is_expandable_to(fitted.sizes(), losses.sizes()) ||
      (fitted.dim() > 0 && fitted.size(0) != losses.size(0)))
    throw InvalidArgument(
        c10::str("compute_average_loss: sample_weight has shape ",
                 weights.sizes(), ", which does not fit losses of shape ",
                 losses.sizes(), "\n  next:    give one weight per sample"));
  return losses * fitted.to(losses.options());
}

void check_reduction(ReduceOp op, const at::Tensor& value) {
  if (op != ReduceOp::kSum && op != ReduceOp::kAverage)
    throw InvalidArgument(
        "Strategy::reduce: values can only be summed or averaged"
        "\n  next:    use ReduceOp::kSum or ReduceOp::kAverage");
  if (op == ReduceOp::kAverage && !value.is_floating_point())
    throw InvalidArgument(
        "Strategy::reduce: integers cannot be averaged in their own type"
        "\n  next:    convert them to a floating-point type first");
}

bool has_axis(std::int64_t dimensions, std::int64_t axis) {
  return axis >= -dimensions && axis < dimensions;
}

[[noreturn]] void refuse_axis(std::int64_t axis) {
  throw InvalidArgument(
      c10::str("Strategy::reduce: the value of a replica has "
               "no axis ",
               axis,
               "\n  next:    return values that have the "
               "dimension on every replica"));
}

// The properties of values that replicas compare before they join them.
struct Shape {
  std::int64_t type = 0;
  std::vector<std::int64_t> sizes{};
};

Shape shape_of(const at::Tensor& value) {
  return {static_cast<std::int64_t>(value.scalar_type()), value.sizes().vec()};
}

// Every worker's shape, in rank order.
std::vector<Shape> shapes_of_all(ProcessGroup& group, const at::Tensor& value) {
  Shape own = shape_of(value);
  own.sizes.push_back(own.type);
  std::vector<Shape> shapes;
  for (const Bytes& bytes :
       all_gather_bytes(group, std::as_bytes(std::span(own.sizes)),
                        {.label = "shapes of Strategy::gather"})) {
    std::vector<std::int64_t> numbers(bytes.size() / sizeof(std::int64_t));
    std::memcpy(numbers.data(), bytes.data(), bytes.size());
    const std::int64_t type = numbers.back();
    numbers.pop_back();
    shapes.push_back({type, std::move(numbers)});
  }
  return shapes;
}

bool differ_only_at(std::size_t axis, const Shape& one, const Shape& other) {
  if (one.type != other.type || one.sizes.size() != other.sizes.size())
    return false;
  for (std::size_t i = 0; i < one.sizes.size(); ++i)
    if (i != axis && one.sizes[i] != other.sizes[i]) return false;
  return true;
}

// The sum would silently broadcast a value, or change its type.
void check_addable(const at::Tensor& first, const at::Tensor& other,
                   std::optional<std::int64_t> axis) {
  const std::int64_t dims = first.dim();
  const std::int64_t free = !axis ? -1 : *axis < 0 ? *axis + dims : *axis;
  bool fits = first.scalar_type() == other.scalar_type() && dims == other.dim();
  for (std::int64_t i = 0; fits && i < dims; ++i)
    fits = i == free || first.size(i) == other.size(i);
  if (!fits)
    throw InvalidArgument(c10::str(
        "Strategy::reduce: replicas have values of ", first.sizes(),
        " of type ", first.scalar_type(), " and of ", other.sizes(),
        " of type ", other.scalar_type(),
        "\n  next:    return values of one type and shape; they may differ "
        "along the axis that is reduced"));
}

// Every rank throws the same, since all have these shapes.
void check_joinable(const std::vector<Shape>& shapes, std::int64_t axis) {
  const auto dimensions = std::ssize(shapes[0].sizes);
  const auto place =
      static_cast<std::size_t>(axis < 0 ? axis + dimensions : axis);
  for (std::size_t i = 0; i < shapes.size(); ++i)
    if (!has_axis(dimensions, axis) ||
        !differ_only_at(place, shapes[0], shapes[i]))
      throw InvalidArgument(c10::str(
          "Strategy::gather: values cannot be joined along axis ", axis,
          ": replica 0 has ", at::IntArrayRef(shapes[0].sizes), " of type ",
          static_cast<at::ScalarType>(shapes[0].type), ", replica ", i, " ",
          at::IntArrayRef(shapes[i].sizes), " of type ",
          static_cast<at::ScalarType>(shapes[i].type),
          "\n  next:    return values of one type that have the axis and "
          "differ only there"));
}

}  // namespace

void strategy_internal::move_to_gpu(torch::nn::Module* module,
                                    at::Device device) {
  if (module != nullptr && !device.is_cpu()) module->to(device);
}

void strategy_internal::average_buffers(
    ProcessGroup& group, const std::vector<at::Tensor>& buffers) {
  std::vector<at::Tensor> averaged, copied;
  for (const at::Tensor& buffer : buffers)
    (buffer.is_floating_point() ? averaged : copied).push_back(buffer);
  average_tensors(group, averaged);
  broadcast_tensors(group, copied, 0);
}

std::shared_ptr<ProcessGroup> group_of_workers(
    std::optional<std::chrono::nanoseconds> timeout) {
  const auto config = read_tf_config();
  if (is_initialized()) {
    if (config) check_against(*default_group(), *config);
    return default_group();
  }
  if (!config) return init_process_group({.timeout = timeout});
  return init_process_group({.init_method = "tcp://" + config->first_address,
                             .world_size = config->world_size,
                             .rank = config->rank,
                             .timeout = timeout});
}

Strategy::Strategy(std::vector<at::Device> devices, Variables variables,
                   std::optional<std::chrono::nanoseconds> timeout)
    : variables_(variables),
      threads_(std::make_unique<ReplicaThreads>(
          replica_devices(std::move(devices)), timeout)),
      contexts_(threads_->contexts()) {}

Strategy::Strategy(std::shared_ptr<ProcessGroup> group, at::Device device)
    : contexts_{{.local_replica = 0,
                 .device = replica_devices({device}).front(),
                 .group = std::move(group)}} {}

Strategy::~Strategy() = default;

MultiWorkerMirroredStrategy::MultiWorkerMirroredStrategy(
    const MultiWorkerStrategyOptions& options)
    : Strategy(group_of_workers(options.timeout), options.device) {}

void Strategy::run_on_each(
    const std::function<void(const ReplicaContext&)>& body) {
  if (threads_) return threads_->run(body);
  run_or_abort(contexts_[0], [&](const ReplicaContext& here) {
    c10::OptionalDeviceGuard guard;
    if (!here.device.is_cpu()) guard.reset_device(here.device);
    body(here);
  });
}

void Strategy::centralize(
    const std::vector<std::vector<at::Tensor>>& parameters) const {
  if (variables_ != Variables::kCentral || !contexts_[0].device.is_cpu())
    return;
  const c10::NoGradGuard no_grad;
  for (std::size_t i = 1; i < parameters.size(); ++i)
    for (std::size_t j = 0; j < parameters[i].size(); ++j)
      make_alias(parameters[i][j], parameters[0][j]);
}

at::Tensor Strategy::reduce(ReduceOp op, const PerReplica<at::Tensor>& values,
                            std::optional<std::int64_t> axis) const {
  check_reduction(op, values.local());
  const c10::NoGradGuard no_grad;
  const auto& group = contexts_[0].group;
  // The number of elements along the axis, and of values without the axis, so
  // that all workers know.
  std::vector<std::int64_t> counts{0, 0};
  for (std::size_t i = 0; axis && i < values.size(); ++i) {
    const at::Tensor& value = values.local(static_cast<int>(i));
    const bool fits = has_axis(value.dim(), *axis);
    counts[fits ? 0 : 1] += fits ? value.size(*axis) : 1;
  }
  if (axis && !threads_) group->all_reduce(view(counts), ReduceOp::kSum).wait();
  if (counts[1] > 0) refuse_axis(*axis);
  for (std::size_t i = 1; i < values.size(); ++i)
    check_addable(values.local(0), values.local(static_cast<int>(i)), axis);
  const at::ScalarType type = values.local(0).scalar_type();
  // The sum of numbers whose average fits into 16 bits may not fit.
  const at::ScalarType sum_type = at::toOpMathType(type);
  at::Tensor sum;
  for (std::size_t i = 0; i < values.size(); ++i) {
    const at::Tensor value = values.local(static_cast<int>(i)).detach();
    const at::Tensor own = axis ? value.sum(*axis, /*keepdim=*/false, sum_type)
                                : value.to(sum_type);
    sum = sum.defined() ? sum + own.to(sum.device()) : own.clone();
  }
  if (!threads_) all_reduce(*group, sum, ReduceOp::kSum).wait();
  if (op == ReduceOp::kAverage)
    sum /= axis ? counts[0] : std::int64_t{num_replicas_in_sync()};
  return sum.to(type);
}

at::Tensor Strategy::gather(const PerReplica<at::Tensor>& values,
                            std::int64_t axis) const {
  const c10::NoGradGuard no_grad;
  std::vector<at::Tensor> own;
  for (std::size_t i = 0; i < values.size(); ++i)
    own.push_back(values.local(static_cast<int>(i)).detach());
  if (!threads_) {
    ProcessGroup& group = *contexts_[0].group;
    const auto shapes = shapes_of_all(group, own[0]);
    check_joinable(shapes, axis);
    const at::Tensor mine = own[0].contiguous();
    own.clear();
    for (const Shape& shape : shapes)
      own.push_back(at::empty(shape.sizes, mine.options()));
    all_gather(group, own, mine, {.label = "Strategy::gather"}).wait();
  } else {
    std::vector<Shape> shapes;
    for (const at::Tensor& value : own) shapes.push_back(shape_of(value));
    check_joinable(shapes, axis);
  }
  for (at::Tensor& value : own) value = value.to(contexts_[0].device);
  return at::cat(own, axis);
}

at::Tensor Strategy::compute_average_loss(
    const at::Tensor& losses, const AverageLossOptions& options) const {
  if (losses.dim() == 0)
    throw InvalidArgument(
        "compute_average_loss: expected one loss per sample, got one number, "
        "which is divided already if it is the mean"
        "\n  next:    give one loss per sample (at::Reduction::None)");
  const std::int64_t samples = options.global_batch_size
                                   ? *options.global_batch_size
                                   : losses.size(0) * num_replicas_in_sync();
  if (samples < 1)
    throw InvalidArgument(
        "compute_average_loss: a global batch of " + std::to_string(samples) +
        " samples has no average"
        "\n  next:    if a replica may have no sample, set "
        "global_batch_size, for example to DistributedDataset::samples()");
  const at::Tensor all = weighted(losses, options.sample_weight);
  const at::ScalarType type = all.scalar_type();
  if (!at::isReducedFloatingType(type)) return all.sum() / samples;
  return (all.sum(at::toOpMathType(type)) / samples).to(type);
}

}  // namespace lockstep::strategies

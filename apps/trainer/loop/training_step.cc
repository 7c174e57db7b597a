#include "apps/trainer/loop/training_step.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <cmath>
#include <string>
#include <utility>

#include "apps/options/training_conflicts.h"
#include "lockstep/base/error.h"
#include "lockstep/torch/optimizers.h"

namespace lockstep {
namespace {

BatchTensors part_of(const BatchTensors& batch, std::int64_t begin,
                     std::int64_t count) {
  return {batch.images.narrow(0, begin, count),
          batch.labels.narrow(0, begin, count)};
}

}  // namespace

TrainingStep::TrainingStep(DistributedDataParallel<Classifier>& model,
                           ClippingOptimizer& optimizer,
                           const TrainerOptions& options,
                           const StepParts& parts)
    : model_(model),
      optimizer_(optimizer),
      options_(options),
      parts_(parts),
      precision_(parse_precision(options.precision)),
      skips_nan_(parse_on_nan(options.on_nan) == OnNan::kSkip),
      scaler_({.group = model.group(),
               .enabled = precision_ == Precision::kFloat16 || skips_nan_}) {
  if (options.accumulate < 1)
    throw InvalidArgument("a step cannot have " +
                          std::to_string(options.accumulate) +
                          " micro-batches; the minimum is 1");
  check_conflicts(options);
  if (options.cuda_graph) {
    check_can_capture();
    captured_.emplace(
        model.group(), model.parameters(),
        [this](at::TensorList inputs) { return captured_pass(inputs); });
  }
  const double norm = options.clip_norm.value_or(1);
  if (!(norm > 0) || !std::isfinite(norm))
    throw InvalidArgument("gradients cannot be clipped to a norm of " +
                          std::to_string(norm) + "; it must be above 0");
}

// Replays do not repeat code that runs only on the host.
void TrainingStep::check_can_capture() const {
  const auto refuse = [](const std::string& why) {
    throw InvalidArgument("a pass cannot be captured in a CUDA graph: " + why);
  };
  if (parts_.device == at::kCPU)
    refuse(
        "the CPU does not support graphs"
        "\n  next:    train on cuda, or omit the graph");
  if (parts_.forward || parts_.loss_share != 1)
    refuse(
        "a graph needs the model's own forward pass and the batch's mean "
        "loss"
        "\n  next:    keep the defaults of forward and loss_share, or omit "
        "the graph");
}

TrainingStep::Forward TrainingStep::forward(const BatchTensors& batch) {
  const MixedPrecision scope(precision_, parts_.device);
  const at::Tensor logits =
      parts_.forward ? parts_.forward(batch.images) : model_(batch.images);
  return {logits, at::cross_entropy_loss(logits.to(at::kFloat), batch.labels)};
}

// The loss of a pass, and its logits.
std::vector<at::Tensor> TrainingStep::captured_pass(at::TensorList inputs) {
  const auto [logits, loss] = forward({inputs[0], inputs[1]});
  loss.backward();
  return {loss.detach(), logits.detach()};
}

PendingMetrics TrainingStep::run(const BatchTensors& batch) {
  optimizer_.zero_grad();
  if (skips_nan_) keep_buffers();
  if (report_) report_->data(batch.images);
  PendingMetrics metrics = parts_.logical_shards != nullptr
                               ? pass_shards(batch)
                               : pass_micro_batches(batch);
  if (optimizer_.synchronize) optimizer_.synchronize();
  if (report_) report_->gradients();
  if (!update()) {
    ++skipped_;
    if (skips_nan_) restore_buffers();
  }
  return metrics;
}

// A scaler whose scale stays at 1 only checks.
void TrainingStep::keep_buffers() {
  if (precision_ != Precision::kFloat16) scaler_.update(1);
  kept_buffers_.clear();
  for (const at::Tensor& buffer : model_.module()->buffers())
    kept_buffers_.push_back(buffer.clone());
}

void TrainingStep::restore_buffers() {
  const at::NoGradGuard no_grad;
  const auto buffers = model_.module()->buffers();
  for (std::size_t i = 0; i < buffers.size(); ++i)
    buffers[i].copy_(kept_buffers_[i]);
}

PendingMetrics TrainingStep::pass_micro_batches(const BatchTensors& batch) {
  const std::int64_t samples = batch.labels.size(0);
  const std::int64_t pieces =
      std::min<std::int64_t>(options_.accumulate, samples);
  PendingMetrics metrics;
  for (std::int64_t i = 0; i < pieces; ++i) {
    const std::int64_t begin = samples * i / pieces;
    const std::int64_t count = samples * (i + 1) / pieces - begin;
    const double share =
        static_cast<double>(count) / static_cast<double>(samples);
    const BatchTensors piece = part_of(batch, begin, count);
    if (i + 1 == pieces) {
      metrics += pass(piece, share);
      break;
    }
    const auto local = model_.no_sync();
    metrics += pass(piece, share);
  }
  return metrics;
}

PendingMetrics TrainingStep::pass_shards(const BatchTensors& batch) {
  LogicalShards& shards = *parts_.logical_shards;
  const std::int64_t count = batch.labels.size(0) / shards.own_count();
  PendingMetrics metrics;
  shards.run([&](const LogicalShard& shard) {
    seed_dropout(*model_, shard.seed);
    const std::int64_t begin = (shard.index - shards.first()) * count;
    // In memory of its own: bits may depend on alignment.
    const BatchTensors part = part_of(batch, begin, count);
    metrics += pass({part.images.clone(), part.labels}, 1);
  });
  return metrics;
}

bool TrainingStep::update() {
  if (options_.clip_norm) {
    scaler_.unscale_(*optimizer_.optimizer);
    grad_norm_ = optimizer_.clip_grad_norm(*options_.clip_norm);
  } else {
    grad_norm_ = measured_norm();
  }
  const bool stepped = scaler_.step(*optimizer_.optimizer);
  scaler_.update();
  return stepped;
}

// The norm as the optimizer will see it: scaled gradients stay unchanged.
std::optional<double> TrainingStep::measured_norm() {
  if (!std::exchange(measures_norm_, false) || parts_.optimizer_averages)
    return std::nullopt;
  return lockstep::grad_norm(model_.parameters()) / scaler_.get_scale();
}

PendingMetrics TrainingStep::pass(const BatchTensors& micro_batch,
                                  double share) {
  if (captured_) {
    const auto outputs =
        captured_->run({micro_batch.images, micro_batch.labels});
    return {outputs[0], outputs[1], micro_batch.labels};
  }
  const auto [logits, loss] = forward(micro_batch);
  if (report_) {
    report_->outputs(logits);
    report_->loss(loss);
  }
  // The mean over the batch is the mean of the micro-batches' means, weighted
  // by samples.
  share *= parts_.loss_share;
  scaler_.scale(share == 1 ? loss : loss * share).backward();
  return {loss.detach(), logits.detach(), micro_batch.labels};
}

}  // namespace lockstep

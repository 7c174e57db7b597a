#include "lockstep/train/training_step.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <cmath>
#include <string>

#include "lockstep/base/error.h"

namespace lockstep {

Metrics measure(const at::Tensor& mean_loss, const at::Tensor& logits,
                const at::Tensor& labels) {
  const std::int64_t samples = labels.size(0);
  return {mean_loss.item<double>() * static_cast<double>(samples),
          logits.argmax(1).eq(labels).sum().item<std::int64_t>(), samples};
}

TrainingStep::TrainingStep(DistributedDataParallel<Classifier>& model,
                           ClippingOptimizer& optimizer,
                           const TrainingStepOptions& options)
    : model_(model), optimizer_(optimizer), options_(options) {
  if (options.accumulate < 1)
    throw InvalidArgument("a step cannot have " +
                          std::to_string(options.accumulate) +
                          " micro-batches; the least is 1");
  const double norm = options.clip_norm.value_or(1);
  if (!(norm > 0) || !std::isfinite(norm))
    throw InvalidArgument("gradients cannot be clipped to a norm of " +
                          std::to_string(norm) + "; it must be above 0");
}

Metrics TrainingStep::run(const BatchTensors& batch) {
  const std::int64_t samples = batch.labels.size(0);
  const std::int64_t pieces =
      std::min<std::int64_t>(options_.accumulate, samples);
  Metrics metrics;
  optimizer_.optimizer->zero_grad();
  for (std::int64_t i = 0; i < pieces; ++i) {
    const std::int64_t begin = samples * i / pieces;
    const std::int64_t count = samples * (i + 1) / pieces - begin;
    const double share =
        static_cast<double>(count) / static_cast<double>(samples);
    const BatchTensors piece{batch.images.narrow(0, begin, count),
                             batch.labels.narrow(0, begin, count)};
    if (i + 1 == pieces) {
      metrics += pass(piece, share);
      break;
    }
    const auto local = model_.no_sync();
    metrics += pass(piece, share);
  }
  if (options_.clip_norm)
    grad_norm_ = optimizer_.clip_grad_norm(*options_.clip_norm);
  optimizer_.optimizer->step();
  return metrics;
}

Metrics TrainingStep::pass(const BatchTensors& micro_batch, double share) {
  at::Tensor logits, loss;
  {
    const MixedPrecision scope(options_.precision);
    logits = model_(micro_batch.images);
    loss = at::cross_entropy_loss(logits.to(at::kFloat), micro_batch.labels);
  }
  // The mean over the batch is the mean of the micro-batches' means, each
  // weighted with its samples.
  (share == 1 ? loss : loss * share).backward();
  return measure(loss.detach(), logits.detach(), micro_batch.labels);
}

}  // namespace lockstep

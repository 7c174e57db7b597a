// One step of training: forward and backward passes over a batch, in pieces
// where memory is short, then the optimizer.
//
// Threads: belongs to one thread at a time; every rank of the model's group
//          steps on batches of the same size.
// Errors:  InvalidArgument for options that cannot work; what passes and
//          collectives throw.
#pragma once

#include <optional>

#include "lockstep/torch/batch_tensors.h"
#include "lockstep/torch/distributed_data_parallel.h"
#include "lockstep/train/metrics.h"
#include "lockstep/train/models.h"
#include "lockstep/train/optimizers.h"
#include "lockstep/train/precision.h"

namespace lockstep {

struct TrainingStepOptions {
  // Micro-batches, whose gradients add up to the batch's before they are
  // reduced, once. A batch with fewer samples has a micro-batch a sample.
  int accumulate = 1;
  // The largest norm of the averaged gradients that a step takes; longer ones
  // are scaled. No limit when empty.
  std::optional<double> clip_norm{};
  Precision precision = Precision::kFloat32;
};

// What a batch came to, from the mean of its losses and its logits.
Metrics measure(const at::Tensor& mean_loss, const at::Tensor& logits,
                const at::Tensor& labels);

class TrainingStep {
 public:
  // Both must outlive the object.
  TrainingStep(DistributedDataParallel<Classifier>& model,
               ClippingOptimizer& optimizer,
               const TrainingStepOptions& options);

  // Returns loss and accuracy of this rank's batch before the step.
  Metrics run(const BatchTensors& batch);

  // The norm of the last step's averaged gradients before they were clipped;
  // nothing where they are not.
  std::optional<double> grad_norm() const { return grad_norm_; }

 private:
  // `share`: of the batch's samples, how many are in this micro-batch.
  Metrics pass(const BatchTensors& micro_batch, double share);

  DistributedDataParallel<Classifier>& model_;
  ClippingOptimizer& optimizer_;
  TrainingStepOptions options_;
  std::optional<double> grad_norm_;
};

}  // namespace lockstep

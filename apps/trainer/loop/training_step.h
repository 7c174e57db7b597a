// One step of training: forward and backward passes over a batch, in
// micro-batches where memory is short, then the optimizer.
//
// Threads: an object belongs to one thread at a time; every rank of the model's
//          group steps on batches of the same size.
// Errors:  InvalidArgument for options that cannot work; those of passes and
//          collectives.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <vector>

#include "apps/options/training_options.h"
#include "apps/trainer/loop/optimizers.h"
#include "apps/trainer/model/models.h"
#include "apps/trainer/model/precision.h"
#include "lockstep/torch/consistency.h"
#include "lockstep/torch/device_batches.h"
#include "lockstep/torch/distributed_data_parallel.h"
#include "lockstep/torch/gpu_pass.h"
#include "lockstep/torch/gradient_scaler.h"
#include "lockstep/torch/logical_shards.h"
#include "src/evaluate/pending_metrics.h"

namespace lockstep {

// What a step has from its run besides the options.
struct StepParts {
  at::DeviceType device = at::kCPU;  // of the model and the batches
  // If set, a batch is the samples of this rank's shards, concatenated, of
  // equal length; the shards replace micro-batches, and average the gradients.
  // They must outlive the TrainingStep.
  LogicalShards* logical_shards = nullptr;
  // Replaces model(images) as the forward pass, if set.
  std::function<at::Tensor(const at::Tensor&)> forward{};
  // The factor of a rank's losses: 1/n where the gradients of n ranks are added
  // up instead of averaged.
  double loss_share = 1;
  // Whether the optimizer averages, so that .grad is not averaged after
  // backward().
  bool optimizer_averages = false;
};

// Of the options, a step takes `accumulate`, `clip_norm`, `precision`,
// `on_nan` and `cuda_graph`:
// - A batch with fewer samples than micro-batches has one micro-batch per
//   sample.
// - In float16 losses are scaled. A step whose gradients overflow on some rank
//   is skipped: in float16, and with `on_nan` skip in every precision. With
//   that, buffers such as running statistics keep their values too.
// - A CUDA graph is for whole batches and losses that are not scaled: see
//   CapturedPass.
class TrainingStep {
 public:
  // `model`, `optimizer` and `options` must outlive the object.
  TrainingStep(DistributedDataParallel<Classifier>& model,
               ClippingOptimizer& optimizer, const TrainerOptions& options,
               const StepParts& parts = {});

  TrainingStep(const TrainingStep&) = delete;
  TrainingStep& operator=(const TrainingStep&) = delete;

  // Returns loss and accuracy of this rank's batch before the step. Waits for
  // the device only for a norm and where a step may be skipped.
  PendingMetrics run(const BatchTensors& batch);

  // From the next run() on, passes the tensors to compare to `report`, unless
  // it is null; except those of captured passes. It must outlive the
  // TrainingStep; the caller calls its step_done().
  void report_to(ConsistencyReport* report) { report_ = report; }

  // The next run() computes the norm of the gradients even without clipping,
  // which costs one more read. Not for a sharded optimizer: its norm needs a
  // collective.
  void measure_grad_norm() { measures_norm_ = true; }

  // The norm of the last step's averaged gradients before they were clipped;
  // empty where it was not computed. With post-local SGD, of this rank's own
  // gradients.
  std::optional<double> grad_norm() const { return grad_norm_; }

  // The number of skipped steps; a run that resumes from a checkpoint sets it.
  std::int64_t skipped() const { return skipped_; }
  void set_skipped(std::int64_t skipped) { skipped_ = skipped; }

  GradientScaler& scaler() { return scaler_; }

 private:
  struct Forward {
    at::Tensor logits, loss;
  };
  Forward forward(const BatchTensors& batch);
  // `share`: the fraction of the batch's samples in this micro-batch.
  PendingMetrics pass(const BatchTensors& micro_batch, double share);
  void check_can_capture() const;
  std::vector<at::Tensor> captured_pass(at::TensorList inputs);
  PendingMetrics pass_micro_batches(const BatchTensors& batch);
  PendingMetrics pass_shards(const BatchTensors& batch);
  // Whether the optimizer made its step.
  bool update();
  void keep_buffers();
  void restore_buffers();
  std::optional<double> measured_norm();

  DistributedDataParallel<Classifier>& model_;
  ClippingOptimizer& optimizer_;
  const TrainerOptions& options_;
  StepParts parts_;
  Precision precision_;
  bool skips_nan_;
  GradientScaler scaler_;
  std::optional<CapturedPass> captured_;
  ConsistencyReport* report_ = nullptr;
  bool measures_norm_ = false;  // in the next step
  std::optional<double> grad_norm_;
  std::vector<at::Tensor> kept_buffers_;  // from before the step
  std::int64_t skipped_ = 0;
};

}  // namespace lockstep

// One step of training: forward and backward passes over a batch, in pieces
// where memory is short, then the optimizer.
//
// Threads: belongs to one thread at a time; every rank of the model's group
//          steps on batches of the same size.
// Errors:  InvalidArgument for options that cannot work; what passes and
//          collectives throw.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>

#include "lockstep/torch/batch_tensors.h"
#include "lockstep/torch/captured_pass.h"
#include "lockstep/torch/consistency_report.h"
#include "lockstep/torch/distributed_data_parallel.h"
#include "lockstep/torch/gradient_scaler.h"
#include "lockstep/torch/logical_shards.h"
#include "lockstep/train/models.h"
#include "lockstep/train/optimizers.h"
#include "lockstep/train/pending_metrics.h"
#include "lockstep/train/precision.h"

namespace lockstep {

struct TrainingStepOptions {
  // Micro-batches, whose gradients add up to the batch's before they are
  // reduced, once. A batch with fewer samples has a micro-batch a sample.
  int accumulate = 1;
  // The largest norm of the averaged gradients that a step takes; longer ones
  // are scaled. No limit when empty.
  std::optional<double> clip_norm{};
  // In float16 losses are scaled, and a step whose gradients overflow on some
  // rank is left out.
  Precision precision = Precision::kFloat32;
  at::DeviceType device = at::kCPU;  // where the model and batches are
  // Where there are some, a batch is the samples of this rank's shards one
  // after another, of equal length; they take the place of micro-batches, and
  // average the gradients. They must outlive the TrainingStep.
  LogicalShards* logical_shards = nullptr;
  // A pass that is not model(images), where there is one.
  std::function<at::Tensor(const at::Tensor&)> forward{};
  // The share of its losses that a rank passes on: 1/n where the gradients of n
  // ranks add up, instead of being averaged.
  double loss_share = 1;
  // Whether passes on a GPU are captured in a CUDA graph: see CapturedPass. For
  // whole batches, whose losses are not scaled.
  bool cuda_graph = false;
  // Whether the averages are the optimizer's affair, and .grad is none after
  // backward().
  bool optimizer_averages = false;
};

class TrainingStep {
 public:
  // Both must outlive the object.
  TrainingStep(DistributedDataParallel<Classifier>& model,
               ClippingOptimizer& optimizer,
               const TrainingStepOptions& options);

  TrainingStep(const TrainingStep&) = delete;
  TrainingStep& operator=(const TrainingStep&) = delete;

  // Returns loss and accuracy of this rank's batch before the step. Does not
  // wait for the device but for a norm and for losses that are scaled.
  PendingMetrics run(const BatchTensors& batch);

  // Tells `report`, unless it is null, from the next run() on what there is to
  // compare; not of captured passes. It must outlive the TrainingStep; its
  // step_done() is the caller's.
  void report_to(ConsistencyReport* report) { report_ = report; }

  // Lets the next run() take the norm of the gradients though they are not
  // clipped, which costs reading them once more. Not of a sharded optimizer's
  // gradients: their norm costs an operation of its own.
  void measure_grad_norm() { measures_norm_ = true; }

  // The norm of the last step's averaged gradients before they were clipped;
  // nothing where it was not taken. With post-local SGD, of this rank's own.
  std::optional<double> grad_norm() const { return grad_norm_; }

  // How many steps were left out; to be set by whoever goes on from a
  // checkpoint.
  std::int64_t skipped() const { return skipped_; }
  void set_skipped(std::int64_t skipped) { skipped_ = skipped; }

  GradientScaler& scaler() { return scaler_; }

 private:
  struct Forward {
    at::Tensor logits, loss;
  };
  Forward forward(const BatchTensors& batch);
  // `share`: of the batch's samples, how many are in this micro-batch.
  PendingMetrics pass(const BatchTensors& micro_batch, double share);
  void check_can_capture() const;
  std::vector<at::Tensor> captured_pass(at::TensorList inputs);
  PendingMetrics pass_micro_batches(const BatchTensors& batch);
  PendingMetrics pass_shards(const BatchTensors& batch);
  void update();
  std::optional<double> measured_norm();

  DistributedDataParallel<Classifier>& model_;
  ClippingOptimizer& optimizer_;
  TrainingStepOptions options_;
  GradientScaler scaler_;
  std::optional<CapturedPass> captured_;
  ConsistencyReport* report_ = nullptr;
  bool measures_norm_ = false;  // in the next step
  std::optional<double> grad_norm_;
  std::int64_t skipped_ = 0;
};

}  // namespace lockstep

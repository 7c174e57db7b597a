#include "lockstep/train/trainer.h"

#include <ATen/ATen.h>
#include <torch/version.h>

#include <map>
#include <utility>

#include "lockstep/base/error.h"
#include "lockstep/base/version.h"
#include "lockstep/data/image_samples.h"
#include "lockstep/data/loader.h"
#include "lockstep/data/sample_random.h"
#include "lockstep/data/sampler_sequence.h"
#include "lockstep/torch/batch_tensors.h"
#include "lockstep/torch/distributed_data_parallel.h"
#include "lockstep/torch/replicate.h"
#include "lockstep/train/atomic_file.h"
#include "lockstep/train/checkpoint.h"
#include "lockstep/train/learning_rate.h"
#include "lockstep/train/optimizers.h"
#include "lockstep/train/rank_zero.h"
#include "lockstep/train/training_step.h"

namespace lockstep {
namespace {

using Seconds = std::chrono::duration<double>;
using Clock = std::chrono::steady_clock;

Seconds since(Clock::time_point start) { return Clock::now() - start; }

[[noreturn]] void refuse(const std::string& problem) {
  throw InvalidArgument("cannot train: " + problem);
}

void validate(const TrainerOptions& options, const TrainingData& data,
              int ranks) {
  const std::int64_t batch = options.global_batch;
  if (batch < 1)
    refuse("a global batch of " + std::to_string(batch) +
           " has no images; it must be at least 1");
  if (batch % ranks != 0)
    refuse("a global batch of " + std::to_string(batch) +
           " cannot be divided evenly over " + std::to_string(ranks) +
           " ranks");
  if (data.train.count < batch)
    refuse("the training set has " + std::to_string(data.train.count) +
           " images, fewer than one global batch of " + std::to_string(batch));
  const std::int64_t share = batch / ranks;
  if (options.accumulate > share)
    refuse("a rank's share of the global batch, " + std::to_string(share) +
           " images, cannot be divided into " +
           std::to_string(options.accumulate) + " micro-batches");
  if (data.test.count < 1) refuse("the test set has no images");
  if (options.epochs < 1 || options.evaluate_every < 1 ||
      options.log_interval < 1)
    refuse(
        "the numbers of epochs, of epochs between evaluations and of steps "
        "between reports must be at least 1");
}

ModelOptions model_options(const TrainerOptions& options,
                           const ImageDataset& dataset, int rank) {
  const auto stream = static_cast<std::uint64_t>(rank);
  return {.channels = dataset.channels,
          .height = dataset.height,
          .width = dataset.width,
          .classes = static_cast<std::int64_t>(dataset.class_names.size()),
          .hidden = options.hidden,
          .dropout = options.dropout,
          .seed = options.seed,
          .dropout_seed = SampleRandom(options.seed, stream, 0).next()};
}

AugmentationOptions augmentation(const TrainerOptions& options) {
  if (!options.augment) return {};
  return {.crop_padding = 2, .horizontal_flip = true, .seed = options.seed};
}

// In memory of LibTorch's own, which it aligns alike in every run: the bits of
// its matrix products may depend on that.
BatchTensors aligned(Batch batch) {
  const BatchTensors borrowed = as_tensors(std::move(batch));
  return {borrowed.images.clone(), borrowed.labels.clone()};
}

DistributedDataParallelOptions ddp_options(
    const TrainerOptions& options, const std::shared_ptr<ProcessGroup>& group) {
  return {.group = group,
          .find_unused_parameters = options.find_unused,
          .average_gradients = !options.sharded};
}

OptimizerOptions optimizer_options(const TrainerOptions& options,
                                   const std::shared_ptr<ProcessGroup>& group) {
  return {.learning_rate = options.learning_rate,
          .momentum = options.momentum,
          .weight_decay = options.weight_decay,
          .sharded_over = options.sharded ? group : nullptr};
}

class Run {
 public:
  Run(const TrainerOptions& options, const TrainingData& data,
      const std::shared_ptr<ProcessGroup>& group, const ProgressSink& progress)
      : options_(options),
        data_(data),
        group_(*group),
        progress_(group->rank() == 0 ? progress : ProgressSink()),
        train_samples_(data.train, augmentation(options)),
        test_samples_(data.test),
        schedule_(parse_schedule(options.schedule)),
        model_(make_model(options.model,
                          model_options(options, data.train, group->rank())),
               ddp_options(options, group)),
        optimizer_(make_optimizer(options.optimizer, model_.parameters(),
                                  optimizer_options(options, group))),
        training_step_(model_, optimizer_,
                       {.accumulate = options.accumulate,
                        .clip_norm = options.clip_norm,
                        .precision = parse_precision(options.precision)}) {}

  TrainingResult run();

 private:
  Metrics train_epoch(int epoch);
  Metrics evaluate();
  void save(const TrainingResult& result);

  void report_start();
  void report_step(int epoch, std::int64_t steps, Seconds elapsed);
  void report_epoch(int epoch, const TrainingResult& result, Seconds elapsed);

  const TrainerOptions& options_;
  const TrainingData& data_;
  ProcessGroup& group_;
  ProgressSink progress_;
  ImageSamples train_samples_;
  ImageSamples test_samples_;
  Schedule schedule_;
  DistributedDataParallel<Classifier> model_;
  ClippingOptimizer optimizer_;
  TrainingStep training_step_;
  std::int64_t step_ = 0;   // of this epoch
  Metrics since_report_;    // this rank's, for step records
  bool evaluated_ = false;  // in this epoch
};

TrainingResult Run::run() {
  const auto start = Clock::now();
  report_start();
  TrainingResult result;
  for (int epoch = 0; epoch < options_.epochs; ++epoch) {
    const auto epoch_start = Clock::now();
    result.train = train_epoch(epoch);
    const Seconds elapsed = since(epoch_start);
    evaluated_ = (epoch + 1) % options_.evaluate_every == 0 ||
                 epoch + 1 == options_.epochs;
    if (evaluated_) result.test = evaluate();
    report_epoch(epoch, result, elapsed);
  }
  result.model = model_.module();
  if (!options_.output.empty())
    run_on_rank_zero(group_, "saving the trained model", [&] { save(result); });
  result.duration = since(start);
  return result;
}

Metrics Run::train_epoch(int epoch) {
  const auto start = Clock::now();
  const auto number = static_cast<std::uint64_t>(epoch);
  Loader loader(
      train_samples_,
      sampler_sequence(train_samples_.size(), {.world_size = group_.size(),
                                               .rank = group_.rank(),
                                               .seed = options_.seed,
                                               .epoch = number}),
      {.batch_size = options_.global_batch / group_.size(), .epoch = number});
  const std::int64_t steps = loader.batch_count();
  Metrics total;
  model_.train();
  step_ = 0;
  while (auto batch = loader.next(group_.timeout())) {
    set_learning_rate(*optimizer_.optimizer,
                      options_.learning_rate *
                          learning_rate_factor(schedule_, epoch * steps + step_,
                                               options_.epochs * steps));
    const Metrics metrics = training_step_.run(aligned(*std::move(batch)));
    total += metrics;
    since_report_ += metrics;
    ++step_;
    if (step_ % options_.log_interval == 0 || step_ == steps)
      report_step(epoch, steps, since(start));
  }
  return reduce(total, group_);
}

// The model as it will be saved: rank 0's running statistics, of which each
// rank has gathered its own since its last pass, and float32, whatever training
// computes in.
Metrics Run::evaluate() {
  constexpr std::int64_t kBatch = 250;
  const at::NoGradGuard no_grad;
  model_.eval();
  if (const auto buffers = model_.buffers(); !buffers.empty())
    broadcast_tensors(group_, buffers, 0);
  Loader loader(
      test_samples_,
      each_sample_once(test_samples_.size(), group_.size(), group_.rank()),
      {.batch_size = kBatch});
  Metrics total;
  while (auto next = loader.next(group_.timeout())) {
    const BatchTensors batch = aligned(*std::move(next));
    const at::Tensor logits = model_(batch.images);
    total += measure(at::cross_entropy_loss(logits, batch.labels), logits,
                     batch.labels);
  }
  return reduce(total, group_);
}

// What is not in the tensors themselves but is needed to use them. Nothing that
// differs between equal runs: equal runs give equal files.
void Run::save(const TrainingResult& result) {
  const auto& dataset = data_.train;
  SafetensorsMetadata metadata{
      {"format", "pt"},
      {"lockstep.version", std::string(version())},
      {"lockstep.model", options_.model},
      {"lockstep.dataset", dataset.title},
      {"lockstep.epochs", std::to_string(options_.epochs)},
      {"lockstep.test_accuracy", std::to_string(result.test.accuracy())}};
  save_checkpoint(options_.output, *model_, metadata);
}

void Run::report_start() {
  if (!progress_) return;
  progress_(
      StartRecord{.version = std::string(version()),
                  .ranks = group_.size(),
                  .backend = std::string(group_.backend()),
                  .libtorch_version = TORCH_VERSION,
                  .dataset = data_.train.title,
                  .train_images = data_.train.count,
                  .test_images = data_.test.count,
                  .model = options_.model,
                  .parameters = parameter_count(*model_),
                  .global_batch = options_.global_batch,
                  .batch_per_rank = options_.global_batch / group_.size()});
}

void Run::report_step(int epoch, std::int64_t steps, Seconds elapsed) {
  const Metrics recent = std::exchange(since_report_, {});
  if (!progress_) return;
  const auto done = static_cast<double>(step_);
  progress_(StepRecord{
      .epoch = epoch + 1,
      .epochs = options_.epochs,
      .step = step_,
      .steps = steps,
      .loss = recent.mean_loss(),
      .images_per_second =
          done * static_cast<double>(options_.global_batch) / elapsed.count(),
      .seconds_left =
          elapsed.count() / done * static_cast<double>(steps - step_)});
}

void Run::report_epoch(int epoch, const TrainingResult& result,
                       Seconds elapsed) {
  if (!progress_) return;
  EpochRecord record{
      .epoch = epoch + 1,
      .epochs = options_.epochs,
      .train_loss = result.train.mean_loss(),
      .train_accuracy = result.train.accuracy(),
      .test_accuracy = std::nullopt,
      .images_per_second =
          static_cast<double>(result.train.samples) / elapsed.count(),
      .seconds = elapsed.count()};
  if (evaluated_) record.test_accuracy = result.test.accuracy();
  progress_(record);
}

}  // namespace

TrainingResult train(const TrainerOptions& options, const TrainingData& data,
                     std::shared_ptr<ProcessGroup> group,
                     const ProgressSink& progress) {
  validate(options, data, group->size());
  if (!options.output.empty())
    run_on_rank_zero(*group, "preparing to save the trained model",
                     [&] { prepare_to_replace(options.output); });
  return Run(options, data, group, progress).run();
}

}  // namespace lockstep

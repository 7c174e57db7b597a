#include "apps/trainer/loop/trainer.h"

#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <torch/version.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <deque>
#include <functional>
#include <iterator>
#include <optional>
#include <span>
#include <utility>
#include <variant>

#include "apps/trainer/loop/gradient_traffic.h"
#include "apps/trainer/loop/learning_rate.h"
#include "apps/trainer/loop/nan_check.h"
#include "apps/trainer/loop/replica_checks.h"
#include "apps/trainer/loop/run_checkpoints.h"
#include "apps/trainer/loop/run_description.h"
#include "apps/trainer/loop/run_log.h"
#include "apps/trainer/loop/strategies.h"
#include "apps/trainer/loop/test_images.h"
#include "apps/trainer/loop/trained_model.h"
#include "apps/trainer/loop/trainer_options.h"
#include "apps/trainer/loop/training_step.h"
#include "apps/trainer/model/saved_model.h"
#include "lockstep/base/error.h"
#include "lockstep/comm/groups.h"
#include "lockstep/comm/training_loop.h"
#include "lockstep/data/image_dataset.h"
#include "lockstep/data/loader.h"
#include "lockstep/data/sample_order.h"
#include "lockstep/evaluate/evaluation.h"
#include "lockstep/torch/device_batches.h"
#include "lockstep/torch/distributed_data_parallel.h"
#include "lockstep/torch/logical_shards.h"
#include "lockstep/torch/tensor_collectives.h"
#include "src/base/log.h"
#include "src/base/version.h"
#include "src/checkpoint/atomic_file.h"
#include "src/checkpoint/rank_zero.h"
#include "src/checkpoint/tensor_archive.h"
#include "src/comm/group/group_core.h"
#include "src/comm/hybrid/host_map.h"
#include "src/data/sample_random.h"
#include "src/evaluate/broken_images.h"
#include "src/evaluate/pending_metrics.h"

namespace lockstep {
namespace {

using Seconds = std::chrono::duration<double>;
using Clock = std::chrono::steady_clock;

// Steps whose metrics stay on the device while the host continues: the host is
// at most this many steps ahead, which bounds their memory.
constexpr std::size_t kUnreadSteps = 1;

Seconds since(Clock::time_point start) { return Clock::now() - start; }

at::MemoryFormat memory_format(const TrainerOptions& options) {
  return options.compute.channels_last ? at::MemoryFormat::ChannelsLast
                                       : at::MemoryFormat::Contiguous;
}

// Whether the optimizer averages gradients, or its hook gives each rank only
// its share of the averages: in both cases .grad is not averaged.
bool optimizer_averages(const TrainerOptions& options) {
  return options.sharded && !options.logical_shards;
}

std::unique_ptr<LogicalShards> make_shards(
    const TrainerOptions& options,
    std::shared_ptr<const torch::nn::Module> model,
    const std::shared_ptr<ProcessGroup>& group) {
  if (!options.logical_shards) return nullptr;
  return std::make_unique<LogicalShards>(
      std::move(model), LogicalShardsOptions{.group = group,
                                             .count = *options.logical_shards,
                                             .seed = options.seed});
}

std::int64_t steps_per_epoch(const TrainerOptions& options,
                             std::int64_t images) {
  const std::int64_t batch = options.global_batch;
  return (images + batch - 1) / batch;
}

// A step whose metrics the device may still be computing.
struct PendingStep {
  std::int64_t number;  // in the whole run
  bool skipped;
  PendingMetrics metrics;
};

class Run {
 public:
  Run(const TrainerOptions& options, const TrainingData& data,
      TrainedReplica& replica, const ProgressSink& progress,
      StepReport* step_report)
      : options_(options),
        data_(data),
        replica_(replica),
        group_(*replica.group),
        progress_(group_.rank() == 0 ? progress : ProgressSink()),
        step_report_(step_report),
        train_batches_(*data.train, replica.device, memory_format(options)),
        test_images_(options, *data.test, replica),
        schedule_(options.schedule, learning_rate_of(options), options.epochs),
        model_(replica.model),
        shards_(make_shards(options, model_.module(), replica.group)),
        optimizer_(replica.optimizer),
        traffic_(hook_of_model(options), model_,
                 options.epochs * steps_per_epoch(options, data.train->size())),
        training_step_(model_, optimizer_, options,
                       {.device = replica.device.type(),
                        .logical_shards = shards_.get(),
                        .forward = replica.forward,
                        .loss_share = replica.loss_share,
                        .optimizer_averages = optimizer_averages(options)}),
        log_(options, replica.group, training_step_),
        checkpoints_(
            options, data,
            {.position = position_,
             .replica = replica,
             .training_step = training_step_,
             .traffic = traffic_,
             .steps_per_epoch = steps_per_epoch(options, data.train->size()),
             .shards = shards_.get()}),
        nan_check_(options, data.train->shape(), replica,
                   [this] { return checkpoints_.newest(); }) {}

  TrainingResult run();

 private:
  std::vector<std::int64_t> training_order() const;
  std::vector<std::string> take_weights();
  void read_metrics(std::size_t unread);
  void settle();
  void end_epoch(TrainingResult& result);
  void save_checkpoint();
  void seed_step(std::int64_t step);
  Metrics train_epoch();
  std::vector<std::string> broken_images();
  std::optional<std::string> loader_waits() const;
  void save_model(std::optional<double> test_accuracy);
  Metrics evaluate_trained();

  StartRecord start_record(const TrainingResult& result) const;
  void report_step(std::int64_t steps, Seconds elapsed);
  void report_epoch(const TrainingResult& result, Seconds elapsed);

  const TrainerOptions& options_;
  const TrainingData& data_;
  TrainedReplica& replica_;
  ProcessGroup& group_;
  ProgressSink progress_;
  StepReport* step_report_;  // null in all threads of a process but one
  DeviceBatches train_batches_;
  TestImages test_images_;
  LearningRate schedule_;
  DistributedDataParallel<Classifier>& model_;
  std::unique_ptr<LogicalShards> shards_;  // if the options ask for them
  ClippingOptimizer& optimizer_;
  GradientTraffic traffic_;
  std::optional<ReplicaChecks> checks_;  // from the first step on
  TrainingStep training_step_;
  RunLog log_;
  RunPosition position_;
  std::int64_t first_step_ = 0;      // this process's first step of this epoch
  std::deque<PendingStep> pending_;  // the last steps
  Metrics since_report_;             // this rank's, for step records
  bool evaluated_ = false;           // in this epoch
  Seconds waited_{};                 // for the loader
  Seconds trained_{};                // in whole epochs, with that
  BrokenImages broken_training_images_{
      {"training image", "replaced by the next"}};
  RunCheckpoints checkpoints_;
  NanCheck nan_check_;
  std::optional<StopRequest> stop_;  // where the run can save itself
  bool stops_ = false;
};

TrainingResult Run::run() {
  const auto start = Clock::now();
  TrainingResult result;
  if (!options_.weights.empty()) result.layers_begun_anew = take_weights();
  result.resumed_from = checkpoints_.begin();
  if (!options_.checkpoint_dir.empty()) stop_.emplace(replica_.group);
  const StartRecord record = start_record(result);
  // A launcher takes it as the sign that the folder of checkpoints is the
  // run's.
  if (progress_) progress_(record);
  // Where parameters are shared, only one replica has loaded buffers.
  model_.broadcast_buffers();
  const std::int64_t steps = steps_per_epoch(options_, data_.train->size());
  const std::int64_t steps_done = position_.epoch * steps + position_.step;
  log_.begin(record, steps_done, steps);
  nan_check_.begin(steps);
  checks_.emplace(options_.checks, model_, optimizer_averages(options_),
                  steps_done);
  training_step_.report_to(checks_->report());
  for (; position_.epoch < options_.epochs;
       position_ = {.epoch = position_.epoch + 1}) {
    const auto epoch_start = Clock::now();
    result.train = train_epoch();
    if (stops_) {
      checkpoints_.finish();
      result.stopped_after = position_.epoch * steps + position_.step;
      return result;
    }
    const Seconds elapsed = since(epoch_start);
    end_epoch(result);
    report_epoch(result, elapsed);
  }
  checkpoints_.finish();
  result.checkpoint_waits = checkpoints_.waits();
  result.loader_waits = loader_waits();
  if (options_.max_broken > 0) result.broken_images = broken_images();
  result.model = model_.module();
  result.skipped_steps = training_step_.skipped();
  result.compression = traffic_.summary();
  result.duration = since(start);
  return result;
}

// Averages the models, if they differ, and evaluates if it is time.
void Run::end_epoch(TrainingResult& result) {
  traffic_.settle();
  settle();
  // Otherwise the checkpoint before it has been checked.
  if (!checkpoints_.are_due()) nan_check_.check_state();
  const std::int64_t done = position_.epoch + 1;
  const bool is_last = done == options_.epochs;
  evaluated_ = done % options_.evaluate_every == 0 || is_last;
  if (evaluated_)
    result.test = is_last ? evaluate_trained() : test_images_.evaluate();
  settle();
}

std::vector<std::string> Run::take_weights() {
  const SavedModel saved = read_saved_model(options_.weights, group_);
  std::vector<std::string> anew;
  if (replica_.owns_parameters) anew = lockstep::take_weights(saved, *model_);
  // One replica may have written memory that others are about to read.
  group_.barrier({.label = "after reading weights"}).wait();
  return anew;
}

// The samples of the present epoch from the present step on. Each rank, logical
// shard or device slot has every n-th of the epoch's sequence; a rank's batch
// is its shards' samples, concatenated.
std::vector<std::int64_t> Run::training_order() const {
  const int own = shards_ ? shards_->own_count() : replica_.shares();
  const int parts = group_.size() * own;
  const std::int64_t batch = options_.global_batch / parts;
  std::vector<std::vector<std::int64_t>> sequences;
  for (int i = 0; i < own; ++i)
    sequences.push_back(
        sampler_sequence(data_.train->size(),
                         {.world_size = parts,
                          .rank = group_.rank() * own + i,
                          .seed = options_.seed,
                          .epoch = static_cast<std::uint64_t>(position_.epoch),
                          .consumed = position_.step * options_.global_batch}));
  const auto length = std::ssize(sequences[0]);
  std::vector<std::int64_t> order;
  for (std::int64_t begin = 0; begin < length; begin += batch)
    for (const auto& sequence : sequences)
      order.insert(order.end(), sequence.begin() + begin,
                   sequence.begin() + std::min(begin + batch, length));
  return order;
}

// Reads the metrics of all finished steps except the last `unread`.
void Run::read_metrics(std::size_t unread) {
  for (; pending_.size() > unread; pending_.pop_front()) {
    const PendingStep& step = pending_.front();
    const Metrics metrics = step.metrics.read();
    nan_check_.add({step.number, metrics, step.skipped});
    // Means over the steps that were made.
    if (step.skipped && !std::isfinite(metrics.loss)) continue;
    position_.so_far += metrics;
    since_report_ += metrics;
    log_.add(metrics);
  }
}

// Streams continue with the leftovers of an aborted operation: before weights
// are used, this collective shows whether one was aborted.
void Run::settle() {
  if (replica_.device.is_cpu() || group_.size() == 1) return;
  const at::Tensor number = at::zeros({1}, replica_.device);
  all_reduce(group_, number, ReduceOp::kSum, {.label = "before saving"})
      .synchronize();
}

void Run::save_checkpoint() {
  read_metrics(0);
  settle();
  if (nan_check_.check_state()) return checkpoints_.save();
  const std::string done = std::to_string(
      position_.epoch * steps_per_epoch(options_, data_.train->size()) +
      position_.step);
  const std::string why = "no checkpoint is saved after " + done +
                          " steps, because the loss, the weights or the "
                          "optimizer's state are not finite";
  if (stops_) {
    const std::string newest = checkpoints_.newest();
    throw Error("the run was asked to stop, but " + why + "\n  next:    " +
                (newest.empty() ? "train with a lower --lr, or with --clip-norm"
                                : "go on from the checkpoint before it, \"" +
                                      newest + "\""));
  }
  if (group_.rank() == 0) log(LogLevel::kWarn, why);
}

// By the step's number in the whole run, and by rank, as for logical shards:
// dropout does not depend on where a run resumed, or on the strategy.
void Run::seed_step(std::int64_t step) {
  const auto seed = [&](const Classifier& model, int part) {
    seed_dropout(model,
                 SampleRandom(options_.seed, static_cast<std::uint64_t>(step),
                              static_cast<std::uint64_t>(part))
                     .next());
  };
  if (replica_.slots.empty()) seed(*model_, group_.rank());
  int slot = 0;
  for (const auto& model : replica_.slots) seed(*model, slot++);
}

// Trains from the run's present step on.
Metrics Run::train_epoch() {
  const auto start = Clock::now();
  log_.epoch_begins();
  const auto number = static_cast<std::uint64_t>(position_.epoch);
  const std::int64_t batch_size = options_.global_batch / group_.size();
  const std::int64_t samples_of_process =
      is_one_process(options_.strategy) ? options_.global_batch : batch_size;
  std::int64_t& step = position_.step;
  first_step_ = step;
  Loader loader(*data_.train, training_order(),
                {.batch_size = batch_size,
                 .epoch = number,
                 .workers = options_.workers,
                 .elements = train_batches_.elements(),
                 .max_broken = options_.max_broken});
  const std::int64_t steps = step + loader.batch_count();
  model_.train();
  while (auto batch = loader.next(group_.timeout())) {
    const std::int64_t number_of_all = position_.epoch * steps + step;
    const double rate = schedule_.at(number_of_all, steps);
    set_learning_rate(*optimizer_.optimizer, rate);
    log_.step_begins(rate);
    if (step_report_ != nullptr) step_report_->data_ready();
    seed_step(number_of_all);
    const std::int64_t skipped = training_step_.skipped();
    PendingMetrics metrics =
        training_step_.run(train_batches_.copy(*std::move(batch)));
    pending_.push_back({number_of_all, training_step_.skipped() > skipped,
                        std::move(metrics)});
    traffic_.step_done();
    ++step;
    const bool reports = step % options_.log_interval == 0 || step == steps;
    const bool saves = checkpoints_.are_due();
    read_metrics(reports || saves ? 0 : kUnreadSteps);
    log_.step_done();
    checks_->step_done();
    if (step_report_ != nullptr) step_report_->step_done(samples_of_process);
    if (reports) {
      report_step(steps, since(start));
      nan_check_.check_losses();
    }
    stops_ = stop_ && stop_->agreed();
    if (saves || stops_) save_checkpoint();
    if (stops_) return {};
  }
  broken_training_images_.add(loader.broken());
  waited_ += loader.waited();
  trained_ += since(start);
  return reduce(position_.so_far, group_);
}

std::vector<std::string> Run::broken_images() {
  std::vector<std::string> sentences;
  for (const BrokenImages& images :
       {broken_training_images_, test_images_.broken()})
    if (const auto sentence = images.summary(group_))
      sentences.push_back(*sentence);
  return sentences;
}

std::optional<std::string> Run::loader_waits() const {
  // What a user notices.
  constexpr double kMuch = 0.1;
  constexpr Seconds kLong(1);
  const double share = waited_ / trained_;
  if (waited_ < kLong || share < kMuch) return std::nullopt;
  return "reading images held rank 0 back for " +
         std::to_string(std::lround(100 * share)) +
         " % of its training time: more --workers help where there are cores";
}

void Run::save_model(std::optional<double> test_accuracy) {
  if (options_.output.empty()) return;
  run_on_rank_zero(group_, "saving the trained model", [&] {
    save_trained_model(options_, data_, *model_, test_accuracy);
  });
}

// Throws the error in flight with one more line. Which rank failed, and whether
// the arguments were wrong, stays the error's type; other errors say it in
// their text.
[[noreturn]] void rethrow_with(const std::string& line) {
  try {
    throw;
  } catch (const InvalidArgument& error) {
    throw InvalidArgument(error.what() + line);
  } catch (const PeerFailure& error) {
    throw PeerFailure(error.rank(), error.what() + line);
  } catch (const Timeout& error) {
    throw Timeout(error.what() + line);
  } catch (const Error& error) {
    throw Error(error.what() + line);
  }
}

// The trained model is saved before its evaluation, which may fail.
Metrics Run::evaluate_trained() {
  save_model(std::nullopt);
  Metrics test;
  try {
    test = test_images_.evaluate();
  } catch (const Error&) {
    if (options_.output.empty()) throw;
    rethrow_with("\n  saved:   the trained model is saved in \"" +
                 options_.output.string() +
                 "\", without its test accuracy, which lockstep evaluate can "
                 "measure");
  }
  save_model(test.accuracy());
  return test;
}

StartRecord Run::start_record(const TrainingResult& result) const {
  const int ranks = group_.size() * replica_.shares();
  return {.version = std::string(version()),
          .ranks = ranks,
          .backend = std::string(group_.backend()),
          .libtorch_version = TORCH_VERSION,
          .dataset = data_.facts.title +
                     (data_.folders.empty() ? "" : " (" + data_.folders + ")"),
          .train_images = data_.train->size(),
          .test_images = data_.test->size(),
          .model = options_.model,
          .parameters = parameter_count(*model_),
          .global_batch = options_.global_batch,
          .batch_per_rank = options_.global_batch / ranks,
          .notes = start_notes(options_, data_, result)};
}

void Run::report_step(std::int64_t steps, Seconds elapsed) {
  const Metrics recent = std::exchange(since_report_, {});
  if (!progress_) return;
  const std::int64_t step = position_.step;
  const auto done = static_cast<double>(step - first_step_);
  progress_(StepRecord{
      .epoch = static_cast<int>(position_.epoch) + 1,
      .epochs = options_.epochs,
      .step = step,
      .steps = steps,
      .loss = recent.mean_loss(),
      .images_per_second =
          done * static_cast<double>(options_.global_batch) / elapsed.count(),
      .seconds_left =
          elapsed.count() / done * static_cast<double>(steps - step)});
}

void Run::report_epoch(const TrainingResult& result, Seconds elapsed) {
  EpochRecord record{.epoch = static_cast<int>(position_.epoch) + 1,
                     .epochs = options_.epochs,
                     .train_loss = result.train.mean_loss(),
                     .train_accuracy = result.train.accuracy(),
                     .test_accuracy = std::nullopt,
                     .images_per_second = std::nullopt,
                     .seconds = std::nullopt};
  // Steps from before the run was resumed do not count.
  if (position_.step > first_step_) {
    const double made = static_cast<double>(position_.step - first_step_) /
                        static_cast<double>(position_.step);
    record.images_per_second =
        made * static_cast<double>(result.train.samples) / elapsed.count();
    record.seconds = elapsed.count();
  }
  if (evaluated_) record.test_accuracy = result.test.accuracy();
  log_.epoch_done(record, result.test);
  if (progress_) progress_(record);
}

// Two hosts may have one name.
int count_hosts(ProcessGroup& group) {
  const auto gather = [&](const std::string& subject, const std::string& mine) {
    std::vector<std::string> texts;
    for (const Bytes& text : all_gather_bytes(
             group, std::as_bytes(std::span(mine)), {.label = subject}))
      texts.push_back(to_text(text));
    return texts;
  };
  const Settings& settings = group.core().world()->settings();
  return find_hosts(group.rank(), settings.host_id, gather).hosts();
}

// Before any rank refuses its own options, while others go on.
void check_same_run(const TrainerOptions& options, const TrainingData& data,
                    ProcessGroup& group) {
  std::vector<JobField> run = job_fields(options);
  std::ranges::move(job_fields(data), std::back_inserter(run));
  check_same_job(group, run);
}

}  // namespace

TrainingResult train(const TrainerOptions& options, const TrainingData& data,
                     const std::shared_ptr<ProcessGroup>& group,
                     const ProgressSink& shown) {
  check_same_run(options, data, *group);
  check_trainer_options(options, data, group->size());
  check_test_images(options, data, *group);
  if (!options.output.empty())
    run_on_rank_zero(*group, "preparing to save the trained model",
                     [&] { prepare_to_replace(options.output); });
  const int hosts = count_hosts(*group);
  const ProgressSink with_hosts = [&](ProgressRecord record) {
    if (auto* const start = std::get_if<StartRecord>(&record))
      start->hosts = hosts;
    shown(record);
  };
  const ProgressSink progress = shown ? with_hosts : ProgressSink();
  TrainingResult result;
  StepReport report(group);
  for_each_replica(options, data.facts, group, [&](TrainedReplica& replica) {
    // LibTorch sets the number of compute threads per thread, before the
    // thread's first parallel loop, which may come after its first matrix
    // product: the product's bits would depend on where a run begins.
    at::get_num_threads();
    TrainingResult own = Run(options, data, replica, progress,
                             replica.local_replica == 0 ? &report : nullptr)
                             .run();
    if (replica.local_replica == 0) result = std::move(own);
  });
  return result;
}

}  // namespace lockstep

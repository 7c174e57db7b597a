#include "apps/trainer/loop/run_checkpoints.h"

#include <ATen/ATen.h>

#include <chrono>
#include <system_error>
#include <utility>
#include <vector>

#include "apps/options/used_folder.h"
#include "apps/trainer/loop/nan_check.h"
#include "apps/trainer/loop/run_description.h"
#include "lockstep/base/error.h"
#include "src/checkpoint/checkpoint_set.h"
#include "src/checkpoint/rank_zero.h"
#include "src/checkpoint/shared_folder.h"

namespace lockstep {
namespace {

constexpr std::string_view kAuto = "auto";

TrainingState state_of(const RunParts& parts) {
  const TrainedReplica& replica = parts.replica;
  return {.model = replica.owns_parameters ? replica.model.module() : nullptr,
          .optimizer = replica.owns_optimizer
                           ? replica.optimizer.optimizer.get()
                           : nullptr,
          .scaler = &parts.training_step.scaler(),
          .counters = {{"epoch", &parts.position.epoch},
                       {"step", &parts.position.step}},
          // A run seeds all its random numbers by the step.
          .generators = {}};
}

CheckpointFormat format_of(const TrainerOptions& options) {
  switch (parse_checkpoint_format(options.checkpoint_format)) {
    case CheckpointFiles::kSingle:
      return CheckpointFormat::kSafetensors;
    case CheckpointFiles::kSharded:
      return CheckpointFormat::kSharded;
  }
  return CheckpointFormat::kSafetensors;
}

[[noreturn]] void refuse_run(const std::string& problem) {
  throw InvalidArgument("cannot train: " + problem);
}

// Whether `resumed` belongs to the run of `folder`: the folder itself, or a
// checkpoint in it, under any path.
bool is_of(const std::filesystem::path& resumed,
           const std::filesystem::path& folder) {
  std::error_code error;
  const auto whole = std::filesystem::weakly_canonical(resumed, error);
  if (std::filesystem::is_directory(whole, error) &&
      !CheckpointSet::is_at(whole))
    return std::filesystem::equivalent(whole, folder, error);
  return std::filesystem::equivalent(whole.parent_path(), folder, error);
}

// Whether restore() will say that there is nothing to resume from, which the
// user must mend first.
bool is_missing(const std::filesystem::path& resumed) {
  std::error_code error;
  return !resumed.empty() && !std::filesystem::exists(resumed, error);
}

}  // namespace

void check_checkpoint_options(const TrainerOptions& options) {
  if (options.keep < 1 || options.checkpoint_every.value_or(1) < 1)
    refuse_run(
        "the numbers of steps between checkpoints and of checkpoints to keep "
        "must be at least 1");
  if (options.checkpoint_dir.empty() && options.resume == kAuto)
    refuse_run("no folder of checkpoints to resume from is set");
}

RunCheckpoints::RunCheckpoints(const TrainerOptions& options,
                               const TrainingData& data, const RunParts& parts)
    : options_(options),
      images_(data.train->shape()),
      folders_(data.folders),
      group_(parts.replica.group),
      parts_(parts),
      folder_(options.checkpoint_dir, {.keep = options.keep,
                                       .format = format_of(options),
                                       .group = group_}),
      state_(state_of(parts)) {
  numbers_.metrics = at::zeros({3}, at::kDouble);
  state_.counters["skipped"] = &numbers_.skipped;
  state_.counters["hook"] = &numbers_.passes;
  state_.counters["shards"] = &numbers_.shard_runs;
  state_.own["metrics"] = numbers_.metrics;
  CheckpointedJob job = checkpointed_job(options, data);
  state_.job = std::move(job.properties);
  state_.job_defaults = std::move(job.defaults);
}

std::optional<std::filesystem::path> RunCheckpoints::begin() {
  if (!options_.checkpoint_dir.empty()) {
    run_on_rank_zero(*group_, "preparing to save checkpoints", [&] {
      folder_.prepare();
      // Otherwise the checkpoints of this run would replace those of another.
      if (options_.resume != kAuto && !is_missing(options_.resume) &&
          !is_of(options_.resume, options_.checkpoint_dir))
        refuse_used_folder();
    });
    if (format_of(options_) == CheckpointFormat::kSharded)
      check_shared(*group_, options_.checkpoint_dir);
  }
  std::optional<std::filesystem::path> from;
  if (!options_.resume.empty()) from = restore();
  if (!options_.checkpoint_dir.empty())
    run_on_rank_zero(*group_, "preparing to save checkpoints",
                     [&] { folder_.check_step(steps_done()); });
  return from;
}

std::int64_t RunCheckpoints::steps_done() const {
  return parts_.position.epoch * parts_.steps_per_epoch + parts_.position.step;
}

void RunCheckpoints::refuse_used_folder() const {
  const auto files = folder_.files();
  if (files.empty()) return;
  refuse_run(describe_used_folder(options_.checkpoint_dir,
                                  files.back().filename().string()));
}

bool RunCheckpoints::are_due() const {
  if (options_.checkpoint_dir.empty()) return false;
  const std::int64_t steps = parts_.steps_per_epoch;
  const std::int64_t done = steps_done();
  return done % options_.checkpoint_every.value_or(steps) == 0 ||
         done == options_.epochs * steps;
}

void RunCheckpoints::save() {
  const Metrics& metrics = parts_.position.so_far;
  numbers_.skipped = parts_.training_step.skipped();
  numbers_.passes = parts_.traffic.passes();
  if (parts_.shards != nullptr) numbers_.shard_runs = parts_.shards->step();
  numbers_.metrics[0] = metrics.loss;
  numbers_.metrics[1] = static_cast<double>(metrics.correct);
  numbers_.metrics[2] = static_cast<double>(metrics.samples);
  folder_.save(state_, steps_done());
}

std::string RunCheckpoints::newest() {
  constexpr std::string_view kLooking = "looking for the newest checkpoint";
  folder_.finish();
  std::filesystem::path path = resumed_from_;
  run_on_rank_zero(*group_, kLooking, [&] {
    if (options_.checkpoint_dir.empty()) return;
    if (const auto files = folder_.files(); !files.empty()) path = files.back();
  });
  return share_path(*group_, path, kLooking).string();
}

// A run that had become NaN may have saved it with an earlier version.
void RunCheckpoints::refuse_not_finite() const {
  if (parse_on_nan(options_.on_nan) == OnNan::kIgnore) return;
  const std::string name =
      first_not_finite(*parts_.replica.model, images_, *group_,
                       parts_.replica.optimizer.optimizer.get());
  if (name.empty()) return;
  refuse_run("in the checkpoint \"" + resumed_from_.string() + "\", " + name +
             " is not finite"
             "\n  likely:  the run had diverged before it was saved"
             "\n  next:    move it out of its folder, and resume from the one "
             "before it with a lower --lr");
}

// An earlier version measured test/ where there is valid/ too.
std::string RunCheckpoints::why_other_files(std::string_view refusal) const {
  if (folders_.empty() ||
      refusal.find("\n  files was ") == std::string_view::npos)
    return {};
  return "\n  likely:  images were added, removed or renamed; or an earlier "
         "version of Lockstep measured on another folder than this one, which "
         "takes " +
         folders_ +
         ": to go on with that, name with --data-dir a folder with links to "
         "train and to that folder alone";
}

std::optional<std::string> RunCheckpoints::waits() const {
  const CheckpointWaits& waits = folder_.waits();
  if (waits.count == 0) return std::nullopt;
  const auto time =
      std::chrono::duration_cast<std::chrono::milliseconds>(waits.time);
  return std::to_string(waits.count) +
         " checkpoints waited until the one before was on the disk, " +
         std::to_string(time.count()) +
         " ms in all: save less often, or to a faster disk";
}

std::optional<std::filesystem::path> RunCheckpoints::restore() {
  std::optional<std::filesystem::path> from;
  try {
    if (options_.resume == kAuto)
      from = folder_.resume(state_);
    else
      from = folder_.load(options_.resume, state_);
  } catch (const InvalidArgument& error) {
    throw InvalidArgument(error.what() + why_other_files(error.what()));
  }
  if (!from) return from;
  // One replica may have restored memory that others are about to read.
  group_->barrier({.label = "after restoring a checkpoint"}).wait();
  resumed_from_ = *from;
  refuse_not_finite();
  parts_.training_step.set_skipped(numbers_.skipped);
  parts_.traffic.set_passes(numbers_.passes);
  if (parts_.shards != nullptr) parts_.shards->set_step(numbers_.shard_runs);
  const auto number = [&](int i) { return numbers_.metrics[i].item<double>(); };
  RunPosition& position = parts_.position;
  position.so_far = {number(0), static_cast<std::int64_t>(number(1)),
                     static_cast<std::int64_t>(number(2))};
  if (position.epoch >= options_.epochs)
    refuse_run("the checkpoint \"" + from->string() + "\" is of epoch " +
               std::to_string(position.epoch + 1) +
               ", but the run ends after " + std::to_string(options_.epochs) +
               ": ask for more epochs");
  return from;
}

}  // namespace lockstep

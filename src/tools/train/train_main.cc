// lockstep-train: one process of `lockstep train`. The launcher starts it with
// the flags that the user gave to the command; started alone, it is the only
// rank of a world of size 1, or all ranks of a strategy that runs them as
// threads.
//
// Exit codes: 0 when the model is trained and saved, 2 for invalid flags or
// environment variables, 1 for all other errors.
#include <ATen/Parallel.h>
#include <torch/version.h>

#include <algorithm>
#include <chrono>
#include <filesystem>
#include <fstream>
#include <functional>
#include <iostream>
#include <iterator>
#include <optional>
#include <span>
#include <string>
#include <system_error>
#include <vector>

#include "lockstep/comm/init.h"
#include "lockstep/comm/objects.h"
#include "lockstep/torch/strategy.h"
#include "src/base/process_environment.h"
#include "src/base/report_text.h"
#include "src/comm/group/same_job.h"
#include "src/launch/output/progress_display.h"
#include "src/launch/worker/cpu_share.h"
#include "src/tools/job/device_flags.h"
#include "src/tools/job/rank_program.h"
#include "src/tools/train/strategy_flags.h"
#include "src/tools/train/train_options.h"
#include "src/train/trainer/progress_writer.h"
#include "src/train/trainer/run_description.h"
#include "src/train/trainer/trainer.h"
#include "src/train/trainer/training_device.h"

namespace lockstep {
namespace {

TrainerOptions trainer_options(const TrainOptions& flags, int gpu) {
  return {.model = flags.model,
          .hidden = {flags.hidden.begin(), flags.hidden.end()},
          .dropout = flags.dropout,
          .epochs = flags.epochs,
          .global_batch = flags.global_batch_size.value(),
          .optimizer = flags.optimizer,
          .learning_rate = flags.learning_rate.value(),
          .schedule = {.name = flags.schedule,
                       .step_size = flags.lr_step_size.value(),
                       .gamma = flags.lr_gamma.value(),
                       .min_rate = flags.lr_min.value(),
                       .warmup_epochs = flags.lr_warmup_epochs.value(),
                       .warmup_decay = flags.lr_warmup_decay.value()},
          .momentum = flags.momentum,
          .weight_decay = flags.weight_decay,
          .accumulate = flags.accumulate,
          .clip_norm = flags.clip_norm,
          .sharded = flags.sharded,
          .find_unused = flags.find_unused,
          .strategy = flags.strategy,
          .replicas = ranks_of_a_process(flags),
          .logical_shards = flags.logical_shards,
          .precision = flags.precision,
          .tf32 = flags.compute.tf32,
          .channels_last = flags.compute.channels_last,
          .cuda_graph = flags.cuda_graph,
          .device = device_of_rank(flags.devices, gpu),
          .hook = flags.hook,
          .sync_batch_norm = flags.sync_bn,
          .checks = {.consistency_steps = flags.check_consistency,
                     .show = flags.show_values,
                     .fingerprint_every = flags.fingerprint_every.value_or(0),
                     .print =
                         [](const std::string& table) {
                           std::cout << table << std::flush;
                         }},
          .seed = flags.seed,
          .weights = flags.weights,
          .augment = flags.augment,
          .output = flags.output,
          .checkpoint_dir = flags.checkpoint_dir,
          .checkpoint_every = flags.checkpoint_every,
          .keep = flags.keep.value(),
          .resume = flags.resume,
          .log_dir = flags.log_dir,
          .evaluate_every = flags.evaluate_every,
          .log_interval = flags.log_interval};
}

// Commands that a user may want to run next.
std::vector<std::string> hints(const TrainOptions& flags) {
  std::vector<std::string> lines;
  if (!flags.hints) return lines;
  if (!flags.augment && flags.model == "convnet")
    lines.push_back("lockstep train --augment --epochs 15");
  lines.push_back(
      "lockstep evaluate " + flags.output +
      (flags.data_dir.empty() ? "" : " --data-dir " + flags.data_dir));
  if (flags.model != "mlp")
    lines.push_back("lockstep train --model mlp --hidden 1024,1024");
  lines.push_back("lockstep train --help");
  return lines;
}

void report_end(const TrainOptions& flags, const TrainerOptions& options,
                const TrainingResult& result, ProgressWriter* writer) {
  std::vector<std::string> notes;
  if (options.strategy == "data-parallel")
    notes.push_back(
        peak_memory_text(training_devices(options.device, options.replicas)));
  if (result.compression) notes.push_back(*result.compression);
  if (result.layers_begun_anew && !result.resumed_from) {
    std::string note = "began with the weights of " + flags.weights;
    for (const std::string& layer : *result.layers_begun_anew)
      note +=
          (&layer == &result.layers_begun_anew->front() ? "; anew: " : ", ") +
          layer;
    notes.push_back(note);
  }
  if (result.resumed_from)
    notes.push_back("went on from " + result.resumed_from->string());
  if (writer) {
    writer->write(EndRecord{.model_path = flags.output,
                            .test_accuracy = result.test.accuracy(),
                            .seconds = result.duration.count(),
                            .notes = notes,
                            .hints = hints(flags)});
    return;
  }
  std::cout << "test accuracy " << percent(result.test.accuracy(), 2)
            << " after " << flags.epochs
            << (flags.epochs == 1 ? " epoch" : " epochs")
            << "; the model is in " << flags.output << std::endl;
  for (const std::string& note : notes) std::cout << note << std::endl;
}

// The progress for launchers that draw nothing: plain lines.
class PlainProgress {
 public:
  PlainProgress()
      : display_({.utf8 = terminal_style(1, environment_variable).utf8}) {}

  void show(const ProgressRecord& record) {
    const auto now = std::chrono::steady_clock::now();
    display_.add(record, now);
    std::cout << display_.draw(now) << std::flush;
  }

 private:
  ProgressDisplay display_;
};

// What every rank must have been started for.
std::vector<JobField> job_of_command(const TrainOptions& flags,
                                     const TrainerOptions& options) {
  std::vector<JobField> job{{"the command", "lockstep train"},
                            {"--dataset", flags.dataset}};
  std::ranges::move(job_fields(options), std::back_inserter(job));
  return job;
}

// The number of ranks, this one included, that run on this rank's cores. A
// collective.
int ranks_on_own_cores(ProcessGroup& group) {
  std::string mine;
  std::getline(std::ifstream("/proc/sys/kernel/random/boot_id"), mine);
  std::error_code ignored;
  mine += std::filesystem::read_symlink("/proc/self/ns/cgroup", ignored);
  for (const int core : allowed_cores()) mine += " " + std::to_string(core);
  const auto all =
      all_gather_bytes(group, std::as_bytes(std::span(mine)),
                       {.label = "counting the ranks on the same cores"});
  const auto is_mine = [&](const Bytes& other) {
    return std::ranges::equal(other, std::as_bytes(std::span(mine)));
  };
  return static_cast<int>(std::ranges::count_if(all, is_mine));
}

// Unless the user or a launcher has set the number of compute threads, ranks
// that share cores divide them: LibTorch would use every core on each rank.
void set_threads(const TrainOptions& flags, ProcessGroup& group) {
  const int ranks = ranks_on_own_cores(group);
  if (flags.threads)
    at::set_num_threads(*flags.threads * ranks_of_a_process(flags));
  else if (ranks > 1 && !environment_variable("OMP_NUM_THREADS"))
    at::set_num_threads(default_threads(usable_cores(), ranks));
}

void run(const TrainOptions& flags, const Settings& settings) {
  const auto group = flags.strategy == "multi-worker" ? group_of_workers()
                                                      : init_process_group();
  set_threads(flags, *group);
  const TrainerOptions options = trainer_options(flags, gpu_of_rank(settings));
  check_same_job(*group, job_of_command(flags, options));
  const TrainingData data{
      load_dataset(flags.dataset, Split::kTrain, flags.data_dir),
      load_dataset(flags.dataset, Split::kTest, flags.data_dir)};
  std::optional<ProgressWriter> writer;
  std::optional<PlainProgress> plain;
  if (group->rank() == 0) {
    if (settings.progress_fd)
      writer.emplace(*settings.progress_fd);
    else
      plain.emplace();
  }
  const TrainingResult result =
      train(options, data, group, [&](const ProgressRecord& record) {
        if (writer) writer->write(record);
        if (plain) plain->show(record);
      });
  if (group->rank() == 0)
    report_end(flags, options, result, writer ? &*writer : nullptr);
  // No rank may leave while another still reads its data.
  group->barrier({.label = "the end of training"}).wait();
  destroy_process_group();
}

}  // namespace
}  // namespace lockstep

int main(int count, char** arguments) {
  using lockstep::RankPlace, lockstep::Settings, lockstep::TrainOptions;
  return lockstep::run_rank_program(
      {.name = "lockstep-train",
       .library = "LibTorch " TORCH_VERSION,
       .prepare = [](std::span<const char* const> typed,
                     const Settings& settings,
                     const RankPlace& place) -> std::function<void()> {
         const TrainOptions flags = lockstep::parse_train_options(typed, place);
         return [=] { lockstep::run(flags, settings); };
       }},
      count, arguments);
}

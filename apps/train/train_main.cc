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

#include "apps/job/device_flags.h"
#include "apps/job/rank_program.h"
#include "apps/train/train_options.h"
#include "apps/trainer/loop/progress_writer.h"
#include "apps/trainer/loop/run_description.h"
#include "apps/trainer/loop/trainer.h"
#include "apps/trainer/loop/training_device.h"
#include "lockstep/comm/groups.h"
#include "lockstep/torch/strategies.h"
#include "src/base/main_function.h"
#include "src/base/process_environment.h"
#include "src/base/report_text.h"
#include "src/base/shell_word.h"
#include "src/comm/group/same_job.h"
#include "src/data/known_datasets.h"
#include "src/launch/output/progress_display.h"
#include "src/launch/worker/cpu_share.h"

namespace lockstep {
namespace {

// Commands that a user may want to run next, on the same data.
std::vector<std::string> hints(const TrainOptions& options) {
  std::vector<std::string> lines;
  if (!options.hints) return lines;
  const std::string folder =
      options.data_dir.empty() ? ""
                               : " --data-dir " + shell_word(options.data_dir);
  std::string train = "lockstep train";
  if (options.given.contains("--dataset"))
    train += " --dataset " + options.dataset;
  train += folder;
  const bool is_folder = options.dataset == kImageFolder;
  if (is_folder && options.given.contains("--image-size"))
    train += " --image-size " + std::to_string(options.image_size);
  if (options.augment.empty() && options.model == "convnet")
    lines.push_back(train + " --augment --epochs 15");
  lines.push_back("lockstep evaluate " + shell_word(options.output.string()) +
                  folder);
  if (options.model != "mlp" && !is_folder)
    lines.push_back(train + " --model mlp --hidden 1024,1024");
  lines.push_back("lockstep train --help");
  return lines;
}

void report_end(const TrainOptions& options, const TrainingResult& result,
                ProgressWriter* writer) {
  std::vector<std::string> notes;
  if (options.strategy == "data-parallel")
    notes.push_back(
        peak_memory_text(training_devices(options.device, options.replicas)));
  if (result.skipped_steps > 0)
    notes.push_back(std::to_string(result.skipped_steps) +
                    (result.skipped_steps == 1 ? " step was" : " steps were") +
                    " skipped, because gradients were not finite");
  if (result.compression) notes.push_back(*result.compression);
  notes.insert(notes.end(), result.broken_images.begin(),
               result.broken_images.end());
  if (result.loader_waits) notes.push_back(*result.loader_waits);
  if (result.checkpoint_waits) notes.push_back(*result.checkpoint_waits);
  if (writer) {
    writer->write(EndRecord{.model_path = options.output.string(),
                            .test_accuracy = result.test.accuracy(),
                            .seconds = result.duration.count(),
                            .notes = notes,
                            .hints = hints(options)});
    return;
  }
  std::cout << "test accuracy " << percent(result.test.accuracy(), 2)
            << " after " << options.epochs
            << (options.epochs == 1 ? " epoch" : " epochs")
            << "; the model is in " << options.output.string() << std::endl;
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
std::vector<JobField> job_of_command(const TrainOptions& options) {
  std::vector<JobField> job{{"the command", "lockstep train"},
                            {"--dataset", options.dataset}};
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

// Unless the user or a launcher has set the numbers of compute threads and of
// workers, ranks that share cores divide them: LibTorch would use every core on
// each rank.
void set_threads(TrainOptions& options, ProcessGroup& group) {
  const int ranks = ranks_on_own_cores(group);
  if (options.readers)
    options.workers = *options.readers;
  else if (options.dataset == kImageFolder)
    options.workers = default_threads(usable_cores(), ranks * options.replicas);
  if (options.threads)
    at::set_num_threads(*options.threads * options.replicas);
  else if (ranks > 1 && !environment_variable("OMP_NUM_THREADS"))
    at::set_num_threads(default_threads(usable_cores(), ranks));
}

// Returns the exit code.
int run(TrainOptions options, const Settings& settings) {
  const auto group = options.strategy == "multi-worker"
                         ? strategies::group_of_workers()
                         : init_process_group();
  set_threads(options, *group);
  options.device = device_of_rank(options.devices, gpu_of_rank(settings));
  options.checks.print = [](const std::string& table) {
    std::cout << table << std::flush;
  };
  check_same_job(*group, job_of_command(options));
  const TrainingData data =
      load_training_data(options.dataset, options.data_dir, options);
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
  if (group->rank() == 0 && result.stopped_after)
    std::cout << "stopped after " << *result.stopped_after
              << " steps, as asked; the run is saved in "
              << options.checkpoint_dir.string() << std::endl;
  else if (group->rank() == 0)
    report_end(options, result, writer ? &*writer : nullptr);
  // No rank may leave while another still reads its data.
  group->barrier({.label = "the end of training"}).wait();
  destroy_process_group();
  return result.stopped_after ? kExitStartAgain : 0;
}

}  // namespace
}  // namespace lockstep

int main(int count, char** arguments) {
  lockstep::discard_closed_output();
  return lockstep::run_rank_program(
      {.name = "lockstep-train",
       .library = "LibTorch " TORCH_VERSION,
       .prepare =
           lockstep::prepare_by(lockstep::parse_train_options, lockstep::run)},
      count, arguments);
}

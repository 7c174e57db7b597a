// lockstep-train: one process of `lockstep train`. The launcher starts it with
// the flags that the user gave to the command; started alone, it is the one
// rank of a world of one, or all ranks of a strategy that has them in threads.
//
// Exit codes: 0 when the model is trained and saved, 2 for flags or environment
// variables that cannot work, 1 for everything else.
#include <ATen/Parallel.h>

#include <csignal>
#include <cstdio>
#include <exception>
#include <iomanip>
#include <iostream>
#include <optional>
#include <sstream>
#include <string>

#include "lockstep/base/error.h"
#include "lockstep/base/process_environment.h"
#include "lockstep/comm/init.h"
#include "lockstep/launch/cpu_share.h"
#include "lockstep/tools/strategy_flags.h"
#include "lockstep/tools/train_options.h"
#include "lockstep/torch/strategy.h"
#include "lockstep/train/progress_writer.h"
#include "lockstep/train/trainer.h"

namespace lockstep {
namespace {

constexpr int kFailed = 1;
constexpr int kUsageError = 2;

TrainerOptions trainer_options(const TrainOptions& flags) {
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

std::string percent(double share) {
  std::ostringstream text;
  text << std::fixed << std::setprecision(2) << 100 * share << " %";
  return text.str();
}

// What a user may want to type next.
std::vector<std::string> hints(const TrainOptions& flags) {
  std::vector<std::string> lines;
  if (!flags.augment && flags.model == "convnet")
    lines.push_back("lockstep train --augment --epochs 15");
  if (flags.model != "mlp")
    lines.push_back("lockstep train --model mlp --hidden 1024,1024");
  lines.push_back("lockstep train --help");
  return lines;
}

void report_end(const TrainOptions& flags, const TrainingResult& result,
                ProgressWriter* writer) {
  std::vector<std::string> notes;
  if (result.compression) notes.push_back(*result.compression);
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
  std::cout << "test accuracy " << percent(result.test.accuracy()) << " after "
            << flags.epochs << " epochs; the model is in " << flags.output
            << std::endl;
  for (const std::string& note : notes) std::cout << note << std::endl;
}

void run(const TrainOptions& flags, const Settings& settings) {
  if (flags.threads)
    at::set_num_threads(*flags.threads * ranks_of_a_process(flags));
  const TrainingData data{
      load_dataset(flags.dataset, Split::kTrain, flags.data_dir),
      load_dataset(flags.dataset, Split::kTest, flags.data_dir)};
  const auto group = flags.strategy == "multi-worker" ? group_of_workers()
                                                      : init_process_group();
  std::optional<ProgressWriter> writer;
  if (settings.progress_fd && group->rank() == 0)
    writer.emplace(*settings.progress_fd);
  const TrainingResult result = train(trainer_options(flags), data, group,
                                      [&](const ProgressRecord& record) {
                                        if (writer) writer->write(record);
                                      });
  if (group->rank() == 0)
    report_end(flags, result, writer ? &*writer : nullptr);
  // No rank leaves while another may still read what it has written.
  group->barrier({.place = "the end of training"}).wait();
  destroy_process_group();
}

int complain(const std::string& who, const std::exception& error, int code) {
  std::cerr << "lockstep-train" << who << ": " << error.what() << std::endl;
  return code;
}

int main_of(std::span<const char* const> arguments) {
  std::string who;
  std::optional<TrainOptions> flags;
  std::optional<Settings> settings;
  try {
    settings = Settings::from_environment();
    const int ranks = settings->world_size.value_or(1);
    if (ranks > 1)
      who = " on rank " + std::to_string(settings->rank.value_or(0)) + " of " +
            std::to_string(ranks);
    flags = parse_train_options(arguments, {.cores = usable_cores(),
                                            .world_size = ranks,
                                            .lookup = environment_variable});
  } catch (const std::exception& error) {
    return complain(who, error, kUsageError);
  }
  try {
    run(*flags, *settings);
  } catch (const std::exception& error) {
    return complain(who, error, kFailed);
  }
  return 0;
}

}  // namespace
}  // namespace lockstep

int main(int count, char** arguments) {
  // A reader that is gone and a file that grows too large are errors of the
  // call that meets them, not the end of the process.
  std::signal(SIGPIPE, SIG_IGN);
  std::signal(SIGXFSZ, SIG_IGN);
  return lockstep::main_of(
      std::span<const char* const>(arguments, static_cast<std::size_t>(count))
          .subspan(1));
}

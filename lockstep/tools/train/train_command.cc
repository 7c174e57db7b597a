#include "lockstep/tools/train/train_command.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstdio>
#include <filesystem>
#include <set>
#include <string_view>
#include <utility>

#include "lockstep/base/tf_config.h"
#include "lockstep/launch/worker/cpu_share.h"
#include "lockstep/tools/job/device_flags.h"
#include "lockstep/tools/job/job.h"
#include "lockstep/tools/train/strategy_flags.h"

namespace lockstep {
namespace {

constexpr Companion kTrain{
    .name = "lockstep-train",
    .variable = "LOCKSTEP_TRAIN_PROGRAM",
    .remedy = "this build has no LibTorch; build with it (./dev build)"};

std::vector<std::string> command_of(const TrainRequest& request,
                                    const EnvironmentLookup& lookup) {
  std::vector<std::string> command{require_companion(kTrain, lookup)};
  command.insert(command.end(), request.arguments.begin(),
                 request.arguments.end());
  return command;
}

// The checkpoints' names, which contain the step.
std::set<std::string> checkpoints_in(const std::string& folder) {
  std::set<std::string> names;
  std::error_code error;
  for (std::filesystem::directory_iterator at(folder, error), end;
       !error && at != end; at.increment(error))
    if (const std::string name = at->path().filename();
        name.starts_with("checkpoint-") && name.ends_with(".safetensors"))
      names.insert(name);
  return names;
}

// Quotes a word for a shell.
std::string quoted(const std::string& word) {
  constexpr std::string_view kPlain =
      "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789"
      "-_./,=:+@%";
  if (!word.empty() && word.find_first_not_of(kPlain) == std::string::npos)
    return word;
  std::string text = "'";
  for (const char c : word) text += c == '\'' ? "'\\''" : std::string(1, c);
  return text + "'";
}

// After an incomplete run: prints the command that resumes it.
void suggest_to_resume(const TrainRequest& request,
                       const std::set<std::string>& before) {
  const auto now = checkpoints_in(request.options.checkpoint_dir);
  if (std::ranges::includes(before, now)) return;
  std::string command = "lockstep train";
  bool is_value = false;
  for (const std::string& argument : request.arguments) {
    const bool is_old = is_value || argument.starts_with("--resume");
    is_value = argument == "--resume";
    if (!is_old) command += " " + quoted(argument);
  }
  command += " --resume auto";
  std::fputs(
      fmt::format("lockstep: there are checkpoints in {}; to go on: {}\n",
                  request.options.checkpoint_dir, command)
          .c_str(),
      stderr);
}

}  // namespace

std::optional<std::string> find_train_program(const EnvironmentLookup& lookup) {
  return find_companion(kTrain, lookup);
}

void become_named_worker(const TrainRequest& request,
                         const EnvironmentLookup& lookup) {
  if (request.options.strategy == "multi-worker" && read_tf_config(lookup))
    become(command_of(request, lookup));
}

int run_training(const TrainRequest& request, const EnvironmentLookup& lookup,
                 const JobView& view) {
  const int processes =
      request.options.ranks.value() / ranks_of_a_process(request.options);
  LaunchOptions launch = launch_options({.companion = kTrain,
                                         .arguments = request.arguments,
                                         .ranks = processes,
                                         .launch = request.launch},
                                        lookup);
  apply(request.options.devices, lookup, launch);
  launch.job.threads = request.options.threads;
  if (!launch.job.threads && !lookup("OMP_NUM_THREADS"))
    launch.job.threads = default_threads(usable_cores(), processes);
  join_ranks_of_launcher(launch, lookup);
  const auto before = checkpoints_in(request.options.checkpoint_dir);
  const int exit_code = run_job(std::move(launch), lookup, view);
  if (exit_code != 0) suggest_to_resume(request, before);
  return exit_code;
}

}  // namespace lockstep

#include "apps/train/train_command.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <set>
#include <string_view>
#include <utility>
#include <variant>

#include "apps/job/companion_job.h"
#include "apps/job/device_flags.h"
#include "apps/job/input_files.h"
#include "apps/options/used_folder.h"
#include "lockstep/base/error.h"
#include "src/base/main_function.h"
#include "src/base/shell_word.h"
#include "src/base/tf_config.h"
#include "src/launch/worker/cpu_share.h"
#include "src/launch/worker/placement.h"
#include "src/store/host_address.h"

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
std::set<std::string> checkpoints_in(const std::filesystem::path& folder) {
  std::set<std::string> names;
  std::error_code error, ignored;
  for (std::filesystem::directory_iterator at(folder, error), end;
       !error && at != end; at.increment(error))
    if (const std::string name = at->path().filename();
        name.starts_with("checkpoint-") &&
        (name.ends_with(".safetensors") ||
         std::filesystem::exists(at->path() / "manifest.json", ignored)))
      names.insert(name);
  return names;
}

// What the command has seen of an incomplete run.
struct SeenRun {
  std::set<std::string> before;  // the checkpoints at its start
  bool began = false;            // rank 0 has restored what it resumes from
  JobResult result;
};

// The text of the folder's lock, which names the last process that owned the
// folder: see src/checkpoint/folder_lock.h. Empty where the file system
// has no locks.
std::string lock_text(const std::filesystem::path& folder) {
  std::ifstream file(folder / ".lock");
  std::string text;
  std::getline(file, text);
  return text;
}

// Whether the folder holds checkpoints of the run, and not of another one that
// kept this run from saving.
bool left_checkpoints(const TrainOptions& options, const SeenRun& run) {
  const auto now = checkpoints_in(options.checkpoint_dir);
  const bool saved = !std::ranges::includes(run.before, now);
  const std::string owner = lock_text(options.checkpoint_dir);
  if (owner.empty()) return saved;
  const bool owned = std::ranges::any_of(run.result.pids, [&](pid_t pid) {
    return owner == fmt::format("process {} on {}", pid, own_host_name());
  });
  // A resumed run that died before its first checkpoint can resume again; one
  // that was refused cannot.
  constexpr int kKilled = 128;
  const bool resumed = !options.resume.empty() && !now.empty() &&
                       (run.began || run.result.exit_code > kKilled);
  return owned && (saved || resumed);
}

// After an incomplete run: prints the command that resumes it.
void suggest_to_resume(const TrainRequest& request, const SeenRun& run) {
  if (!request.options.hints || !left_checkpoints(request.options, run)) return;
  std::string command = "lockstep train";
  bool is_value = false;
  for (const std::string& argument : request.arguments) {
    const bool is_old = is_value || argument.starts_with("--resume");
    is_value = argument == "--resume";
    if (!is_old) command += " " + shell_word(argument);
  }
  command += " --resume auto";
  std::fputs(
      fmt::format("lockstep: there are checkpoints in {}; to go on: {}\n",
                  request.options.checkpoint_dir.string(), command)
          .c_str(),
      stderr);
}

// What every rank would meet. Another program than ours checks itself.
void check_inputs(const TrainOptions& options,
                  const std::set<std::string>& checkpoints,
                  const EnvironmentLookup& lookup) {
  if (!lookup(kTrain.variable).value_or("").empty()) return;
  check_training_data(options.dataset, options.data_dir);
  check_may_be_model(options.weights);
  if (options.resume.empty() && !checkpoints.empty())
    throw InvalidArgument(
        describe_used_folder(options.checkpoint_dir, *checkpoints.rbegin()));
  std::error_code unreadable;
  if (options.resume.empty() || options.resume == "auto") return;
  if (!std::filesystem::exists(options.resume, unreadable))
    throw InvalidArgument(
        fmt::format("there is no checkpoint \"{}\" for --resume: name a file "
                    "or a folder of --checkpoint-dir, or auto",
                    options.resume));
  check_may_be_model(options.resume);
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

// As many as the smallest share of the CPUs has, so that no rank's threads wait
// for a CPU.
int threads_of_rank(Binding binding, int ranks) {
  const auto shares = place_workers(binding, ranks);
  if (shares.empty()) return default_threads(usable_cores(), ranks);
  return static_cast<int>(
      std::ranges::min(shares, {}, &std::vector<int>::size).size());
}

int run_training(const TrainRequest& request, const EnvironmentLookup& lookup,
                 const JobView& view) {
  const int processes =
      request.options.ranks.value() / request.options.replicas;
  LaunchOptions launch = launch_options({.companion = kTrain,
                                         .arguments = request.arguments,
                                         .ranks = processes,
                                         .launch = request.launch},
                                        lookup);
  apply(request.options.devices, lookup, launch);
  launch.job.threads = request.options.threads;
  if (!launch.job.threads && !lookup("OMP_NUM_THREADS"))
    launch.job.threads = threads_of_rank(launch.binding, processes);
  join_ranks_of_launcher(launch, lookup);
  SeenRun seen{.before = checkpoints_in(request.options.checkpoint_dir),
               .result = {}};
  check_inputs(request.options, seen.before, lookup);
  JobView watched = view;
  watched.on_progress = [&](const ProgressRecord& record) {
    seen.began |= std::holds_alternative<StartRecord>(record);
    if (view.on_progress) view.on_progress(record);
  };
  watched.on_end = [&](const JobResult& result) {
    seen.result = result;
    if (view.on_end) view.on_end(result);
  };
  discard_closed_output();
  const int exit_code = run_job(std::move(launch), lookup, watched);
  if (exit_code != 0) suggest_to_resume(request, seen);
  return exit_code;
}

}  // namespace lockstep

#include "lockstep/tools/train_command.h"

#include <unistd.h>

#include <array>
#include <filesystem>
#include <utility>

#include "lockstep/base/error.h"
#include "lockstep/launch/cpu_share.h"
#include "lockstep/tools/job.h"

namespace lockstep {
namespace {

std::filesystem::path own_folder() {
  std::error_code unknown;
  return std::filesystem::read_symlink("/proc/self/exe", unknown).parent_path();
}

std::string require_train_program(const EnvironmentLookup& lookup) {
  if (const auto program = find_train_program(lookup)) return *program;
  throw InvalidArgument(
      "lockstep-train is neither in " + own_folder().string() +
      " nor in ../libexec/lockstep from there: this build has no LibTorch; "
      "build with it (./dev build), or name the program in "
      "LOCKSTEP_TRAIN_PROGRAM");
}

}  // namespace

std::optional<std::string> find_train_program(const EnvironmentLookup& lookup) {
  auto named = lookup("LOCKSTEP_TRAIN_PROGRAM");
  if (named && !named->empty()) return named;
  const std::filesystem::path folder = own_folder();
  const std::array<std::filesystem::path, 2> places{
      folder / "lockstep-train",
      (folder / "../libexec/lockstep/lockstep-train").lexically_normal()};
  for (const auto& place : places)
    if (::access(place.c_str(), X_OK) == 0) return place.string();
  return std::nullopt;
}

int run_training(const TrainRequest& request, const EnvironmentLookup& lookup) {
  LaunchOptions launch;
  launch.command = {require_train_program(lookup)};
  launch.command.insert(launch.command.end(), request.arguments.begin(),
                        request.arguments.end());
  const int ranks = request.options.ranks.value();
  launch.job.workers = ranks;
  launch.job.threads = request.options.threads;
  if (!launch.job.threads && !lookup("OMP_NUM_THREADS"))
    launch.job.threads = default_threads(usable_cores(), ranks);
  apply(request.launch, launch);
  return run_job(std::move(launch), lookup);
}

}  // namespace lockstep

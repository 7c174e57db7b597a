#include "src/tools/run/run_command.h"

#include <fmt/format.h>

#include <charconv>
#include <utility>

#include "lockstep/base/error.h"
#include "src/tools/job/flags.h"
#include "src/tools/job/job.h"

namespace lockstep {

int parse_workers(std::string_view text, int cores,
                  const std::function<int()>& count_gpus) {
  if (text == "cpu") return cores;
  const int gpus = text == "gpu" || text == "auto" ? count_gpus() : 0;
  if (gpus > 0) return gpus;
  if (text == "auto") return cores;
  if (text == "gpu")
    throw InvalidArgument(
        "--nproc-per-node is gpu, but there is no GPU that these workers could "
        "use: look at nvidia-smi and CUDA_VISIBLE_DEVICES, or give a number");
  int workers = 0;
  const char* end = text.data() + text.size();
  const auto [stop, error] = std::from_chars(text.data(), end, workers);
  if (error != std::errc() || stop != end || workers < 1 ||
      workers > kMostRanksOfAHost)
    throw InvalidArgument(fmt::format(
        "--nproc-per-node is \"{}\"; it must be a number from 1 to {}, or cpu, "
        "gpu or auto for the number of cores or GPUs",
        text, kMostRanksOfAHost));
  return workers;
}

void check_nodes(std::string_view text) {
  if (text == "1" || text == "1:1") return;
  throw InvalidArgument(fmt::format(
      "--nnodes is \"{}\"; so far all workers run on this host, so it can only "
      "be 1",
      text));
}

int run_program(const RunOptions& options, const EnvironmentLookup& lookup) {
  LaunchOptions launch;
  launch.command = options.command;
  launch.job.workers = options.workers;
  launch.job.master_port = options.master_port;
  apply(options.launch, launch);
  return run_job(std::move(launch), lookup);
}

}  // namespace lockstep

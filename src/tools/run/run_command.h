// `lockstep run`: starts any program as several ranks on this host.
//
// Threads: the main thread.
// Errors:  InvalidArgument for invalid flags; those of run_job().
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "src/base/settings.h"
#include "src/tools/job/launch_flags.h"

namespace lockstep {

struct RunOptions {
  int workers = 1;
  std::uint16_t master_port = 0;  // 0: a free one
  LaunchFlags launch;
  std::vector<std::string> command;  // the program and its arguments
};

// The number of ranks for --nproc-per-node: a number, "cpu" for `cores`, "gpu"
// for count_gpus(), or "auto": as in torchrun, the GPUs if the host has any,
// otherwise the cores.
int parse_workers(std::string_view text, int cores,
                  const std::function<int()>& count_gpus);

// Refuses every number of hosts except 1.
void check_nodes(std::string_view text);

// Returns the exit code for this process.
int run_program(const RunOptions& options, const EnvironmentLookup& lookup);

}  // namespace lockstep

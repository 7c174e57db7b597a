// `lockstep run`: any program, as several ranks on this host.
//
// Threads: the main thread.
// Errors:  InvalidArgument for flags that cannot be; as run_job().
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "lockstep/base/settings.h"
#include "lockstep/tools/launch_flags.h"

namespace lockstep {

struct RunOptions {
  int workers = 1;
  std::uint16_t master_port = 0;  // 0: one that is free
  LaunchFlags launch;
  std::vector<std::string> command;  // the program and its arguments
};

// The number that --nproc-per-node stands for: a number, "cpu" for `cores`,
// "gpu" for what count_gpus() says, or "auto": as torchrun has it, the second
// where there are some, and else the first.
int parse_workers(std::string_view text, int cores,
                  const std::function<int()>& count_gpus);

// Refuses every number of hosts but one.
void check_nodes(std::string_view text);

// Returns the exit code for this process.
int run_program(const RunOptions& options, const EnvironmentLookup& lookup);

}  // namespace lockstep

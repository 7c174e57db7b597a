// `lockstep run`: starts any program as several ranks, on this host or on
// several, and again after a failure.
//
// Threads: the main thread.
// Errors:  InvalidArgument for invalid flags; those of run_job().
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "src/base/settings.h"
#include "src/launch/nodes/node.h"
#include "src/tools/job/launch_flags.h"

namespace CLI {  // NOLINT(readability-identifier-naming): as CLI11 has it
class App;
}

namespace lockstep {

// The flags about hosts and restarts, with torchrun's names and meaning.
struct NodeFlags {
  std::string nodes = "1";  // N or MIN:MAX
  int node_rank = -1;       // negative: not given
  std::string endpoint;     // HOST or HOST:PORT
  std::string id = "none";
  std::string backend = "c10d";
  std::string configuration;  // KEY=VALUE,…
  std::string master_address;
  std::string local_address;
  int master_port = 0;  // 0: a free one
  int max_restarts = 0;
  bool standalone = false;
};

struct PythonFlags {
  bool no_python = false;
  bool module = false;  // the program is the name of a Python module
};

struct RunOptions {
  int workers = 1;
  NodeFlags nodes;
  LaunchFlags launch;
  std::vector<std::string> command;  // the program and its arguments
};

// The command that starts `program`: python3 runs a module, and a file that
// ends in .py and is not executable, unless `no_python`.
std::vector<std::string> command_of(std::vector<std::string> program,
                                    const PythonFlags& python,
                                    const EnvironmentLookup& lookup);

// The number of ranks for --nproc-per-node: a number, "cpu" for `cores`, "gpu"
// for count_gpus(), or "auto": as in torchrun, the GPUs if the host has any,
// otherwise the cores.
int parse_workers(std::string_view text, int cores,
                  const std::function<int()>& count_gpus);

void add_node_flags(CLI::App& command, NodeFlags& flags);

// What the flags say about a job on several hosts; nothing for one on this host
// alone. `lookup` gives the job's token, LOCKSTEP_TOKEN.
std::optional<NodeOptions> nodes_of(const NodeFlags& flags,
                                    const EnvironmentLookup& lookup);

// Returns the exit code for this process.
int run_program(const RunOptions& options, const EnvironmentLookup& lookup);

}  // namespace lockstep

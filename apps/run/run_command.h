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

#include "apps/job/launch_flags.h"
#include "apps/run/node_flags.h"
#include "src/base/settings.h"
#include "src/launch/output/stream_plan.h"

namespace CLI {  // NOLINT(readability-identifier-naming): as CLI11 has it
class App;
}

namespace lockstep {

struct PythonFlags {
  bool no_python = false;
  bool module = false;  // the program is the name of a Python module
};

// What becomes of the workers' output, with torchrun's names and meaning.
struct StreamFlags {
  std::string redirects;
  std::string tee;
  std::string local_ranks_filter;
  std::optional<bool> fold{};
  std::string error_file;  // empty: none
};

void add_stream_flags(CLI::App& command, StreamFlags& flags);

// InvalidArgument for wrong flags.
StreamPlan streams_of(const StreamFlags& flags);

// InvalidArgument where the screen would show none of `workers` workers.
void check_shown_ranks(const StreamPlan& plan, int workers);

// What follows a worker's death, beside --max-restarts.
struct ReformFlags {
  bool in_place = false;
  std::optional<int> min_ranks{};  // all that the job starts
};

void add_reform_flags(CLI::App& command, ReformFlags& flags);

// InvalidArgument where they contradict each other or the other flags.
void check_reform_flags(const ReformFlags& flags, const NodeFlags& nodes,
                        int workers);

struct RunOptions {
  int workers = 1;
  std::string role = "default";     // ROLE_NAME
  bool virtual_local_rank = false;  // see JobEnvironment
  ReformFlags reform;
  StreamFlags streams;
  std::vector<std::string> arguments;  // those after `lockstep run`
  // Their launchers are started, instead of workers here, with `arguments`.
  // Empty: workers are started here.
  std::vector<HostSlots> hosts;
  NodeFlags nodes;
  LaunchFlags launch;
  std::vector<std::string> command;  // the program and its arguments
  // Where `lockstep run -H` gave the order: whether the connection to it ended.
  std::function<bool()> is_cut_off{};
  bool dry_run = false;  // prints what would start, and starts nothing
};

// The command that starts `program`: python3 runs a module, and a file that
// ends in .py, unless `no_python`.
std::vector<std::string> command_of(std::vector<std::string> program,
                                    const PythonFlags& python,
                                    const EnvironmentLookup& lookup);

// The number of ranks for --nproc-per-node: a number, "cpu" for `cores`, "gpu"
// for count_gpus(), or "auto": as in torchrun, the GPUs if the host has any,
// otherwise the cores.
int parse_workers(std::string_view text, int cores,
                  const std::function<int()>& count_gpus);

// What a user of one rank may not expect, since each of several ranks has one
// compute thread, as under torchrun; "" for several, for one core, and where
// OMP_NUM_THREADS is set.
std::string note_on_threads(int workers, int cores,
                            const EnvironmentLookup& lookup);

// The command of `lockstep` by which a host's launcher is started; see
// HostOrder.
inline constexpr std::string_view kHostLauncher = "host-launcher";

// Returns the exit code for this process.
int run_program(const RunOptions& options, const EnvironmentLookup& lookup);

}  // namespace lockstep

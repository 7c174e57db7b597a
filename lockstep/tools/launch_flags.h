// The flags that all commands share which start ranks: how workers are started,
// whatever they do.
//
// Errors:  as tools/flags.h.
#pragma once

#include <functional>
#include <span>
#include <string>
#include <string_view>

namespace CLI {  // NOLINT(readability-identifier-naming): as CLI11 has it
class App;
}

namespace lockstep {

struct LaunchOptions;

struct LaunchFlags {
  std::string cpu_bind = "cores";  // or none
  std::string log_dir;             // empty: no log is kept
  double grace = 30;               // seconds between SIGTERM and SIGKILL
};

// Adds them to `command`; `flags` must outlive its parsing. `more_logs` is what
// the help says of --log-dir beyond the output of ranks.
void add_launch_flags(CLI::App& command, LaunchFlags& flags,
                      std::string_view more_logs = "");

// Parses a worker's flags: those that `add` registers, and the ones above,
// which it returns; they have had their effect on how it was started. `name` is
// what the user typed to get here: "lockstep train".
LaunchFlags parse_worker_flags(std::string_view name,
                               std::span<const char* const> arguments,
                               const std::function<void(CLI::App&)>& add);

// Puts them into what is launched.
void apply(const LaunchFlags& flags, LaunchOptions& options);

}  // namespace lockstep

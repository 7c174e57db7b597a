// The flags about starting workers, shared by all commands that start ranks.
//
// Errors:  those of apps/job/flags.h.
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
  std::string bind = "auto";
  std::string log_dir;  // empty: no log is kept
  double grace = 30;    // seconds between SIGTERM and SIGKILL
};

// Adds the flags to `command`; `flags` must outlive the parsing. `more_logs` is
// the help on --log-dir beyond the ranks' output.
void add_launch_flags(CLI::App& command, LaunchFlags& flags,
                      std::string_view more_logs = "");

// Parses a worker's flags: those that `add` registers, and the flags above,
// which it returns; the launcher has already applied them. `name` is the
// command as typed: "lockstep train".
LaunchFlags parse_worker_flags(std::string_view name,
                               std::span<const char* const> arguments,
                               const std::function<void(CLI::App&)>& add);

// Copies the flags into the launcher's options, and sets what each command
// gives its ranks besides: the folder of the plug-ins.
void apply(const LaunchFlags& flags, LaunchOptions& options);

}  // namespace lockstep

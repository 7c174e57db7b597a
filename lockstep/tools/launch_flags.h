// The flags that `lockstep run` and `lockstep train` share: how workers are
// started, whatever they do.
//
// Threads: values and pure functions.
#pragma once

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
};

// Adds them to `command`; `flags` must outlive its parsing. `more_logs` is what
// the help says of --log-dir beyond the output of ranks.
void add_launch_flags(CLI::App& command, LaunchFlags& flags,
                      std::string_view more_logs = "");

// Puts them into what is launched.
void apply(const LaunchFlags& flags, LaunchOptions& options);

}  // namespace lockstep

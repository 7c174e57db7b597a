// The companion programs of the command `lockstep`. They load what the command
// must not load, because it starts in milliseconds.
//
// Threads: any thread; reads the disk.
// Errors:  InvalidArgument.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "src/base/settings.h"
#include "src/launch/worker/worker_environment.h"

namespace lockstep {

struct Companion {
  const char* name;      // "lockstep-train"
  const char* variable;  // the environment variable that overrides the path
  // For the user: why it may be missing, and the next step.
  const char* remedy = "build it (./dev build)";
};

// The path in the variable; otherwise the program beside this process's
// executable (a build) or in ../libexec/lockstep (an installation). Nothing
// when it is in neither.
std::optional<std::string> find_companion(const Companion& companion,
                                          const EnvironmentLookup& lookup);

// The same; InvalidArgument when it is missing.
std::string require_companion(const Companion& companion,
                              const EnvironmentLookup& lookup);

// The folder of the libraries of the LibTorch that LOCKSTEP_TORCH names, which
// companions load instead of the one that they were built with; "" when it is
// not set. InvalidArgument when there is no LibTorch in it.
std::string torch_library_folder(const EnvironmentLookup& lookup);

// Executes that program in this process. `command` is its path and arguments,
// `environment` its variables as "NAME=value". SystemError when it cannot
// start.
[[noreturn]] void execute(
    const std::vector<std::string>& command,
    const std::vector<std::string>& environment = current_environment());

// The same for a program that loads LibTorch or our plug-ins: with variables
// that point to them, as a launcher sets them for its workers.
[[noreturn]] void become(
    const std::vector<std::string>& command,
    std::vector<std::string> environment = current_environment());

}  // namespace lockstep

// The programs beside the command `lockstep` that do what it must not carry
// itself, because it starts in milliseconds.
//
// Threads: pure, but for looking at the disk.
// Errors:  InvalidArgument.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "lockstep/base/settings.h"
#include "lockstep/launch/worker_environment.h"

namespace lockstep {

struct Companion {
  const char* name;      // "lockstep-train"
  const char* variable;  // what may name another program in its place
  // Why it may be missing and what to do, for the user.
  const char* remedy = "build it (./dev build)";
};

// What the variable names; else the program of that name beside this process's
// executable, where it is built, or in ../libexec/lockstep, where it is
// installed. Nothing when it is in neither.
std::optional<std::string> find_companion(const Companion& companion,
                                          const EnvironmentLookup& lookup);

// The same, or InvalidArgument.
std::string require_companion(const Companion& companion,
                              const EnvironmentLookup& lookup);

// The folder of the libraries of the LibTorch that LOCKSTEP_TORCH names, which
// companions load instead of the one that they were built with; "" when it is
// not set. InvalidArgument when there is no LibTorch in it.
std::string torch_library_folder(const EnvironmentLookup& lookup);

// Makes this process that program, which is told where our plug-ins and
// LibTorch are, as a launcher tells its workers. `command` is its path and its
// arguments, `environment` its variables, each "NAME=value". SystemError when
// it cannot start.
[[noreturn]] void become(
    const std::vector<std::string>& command,
    std::vector<std::string> environment = current_environment());

}  // namespace lockstep

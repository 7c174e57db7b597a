// The flags of torchrun (PyTorch 2.13) that `lockstep run` takes beside its
// own: those without a counterpart here, and the variables PET_* from which
// flags get their defaults.
//
// Threads: the main thread.
// Errors:  InvalidArgument for a flag that asks for what only torchrun has.
#pragma once

#include <string>
#include <vector>

#include "src/base/environment.h"

namespace CLI {  // NOLINT(readability-identifier-naming): as CLI11 has it
class App;
}

namespace lockstep {

// A flag that has no effect, or is refused with a text that says what to use
// instead. The help lists none of them that are always refused.
void add_torchrun_flags(CLI::App& command);

// Lets the flags of `command` that torchrun has take their defaults from the
// environment: --nproc-per-node from PET_NPROC_PER_NODE. Call it after all
// flags are added.
void take_defaults_from_environment(CLI::App& command);

// Whether the user gave `flag`, and not the environment.
bool is_typed(const CLI::App& command, const std::string& flag);

// The variables that may have given defaults, as "PET_NNODES=2".
std::vector<std::string> variables_with_defaults(
    const EnvironmentLookup& lookup);

}  // namespace lockstep

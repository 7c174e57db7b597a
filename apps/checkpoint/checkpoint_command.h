// `lockstep checkpoint`: executes lockstep-checkpoint, which reads checkpoints.
//
// Threads: the main thread.
// Errors:  InvalidArgument for a usage error, and when lockstep-checkpoint is
//          missing.
#pragma once

#include <string>

#include "src/base/settings.h"

namespace CLI {  // NOLINT(readability-identifier-naming): as CLI11 has it
class App;
}

namespace lockstep {

struct CheckpointOptions {
  std::string action{};  // "merge" or "show"
  std::string set{};     // a folder of shards
  std::string output{};  // of merge
};

void add_checkpoint_options(CLI::App& command, CheckpointOptions& options);

// Call it after parsing.
void check_checkpoint_options(const CheckpointOptions& options);

// Becomes lockstep-checkpoint.
[[noreturn]] void run_checkpoint(const CheckpointOptions& options,
                                 const EnvironmentLookup& lookup);

}  // namespace lockstep

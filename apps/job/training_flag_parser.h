// Adds the rows of the table of training flags to a command's parser.
//
// Threads: one thread at a time, like CLI::App.
#pragma once

#include <span>

#include "apps/options/training_flags.h"

namespace CLI {  // NOLINT(readability-identifier-naming): as CLI11 has it
class App;
class Option;
}  // namespace CLI

namespace lockstep {

// With its help and its check. The target must outlive the parsing.
CLI::Option* add_flag(CLI::App& command, const TrainingFlag& flag);

// The same for several, in the groups of the table.
void add_flags(CLI::App& command, std::span<const TrainingFlag> flags);

}  // namespace lockstep

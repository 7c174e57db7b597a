// The flags of the commands that work on a data set with a model: which ones.
//
// Threads: as CLI::App, one at a time.
// Errors:  as tools/flags.h.
#pragma once

#include <string>

namespace CLI {  // NOLINT(readability-identifier-naming): as CLI11 has it
class App;
class Option;
}  // namespace CLI

namespace lockstep {

// Each adds one to `command` and returns it; what it is parsed into must
// outlive the parsing. `which` follows the known names in the flag's help, to
// say which one it is where nobody says.
CLI::Option* add_dataset_flag(CLI::App& command, std::string& dataset,
                              const std::string& which = "");
CLI::Option* add_model_flag(CLI::App& command, std::string& model,
                            const std::string& which = "");
CLI::Option* add_data_dir_flag(CLI::App& command, std::string& data_dir);

}  // namespace lockstep

// The flags that select a command's data set and model.
//
// Threads: one thread at a time, like CLI::App.
// Errors:  those of apps/job/flags.h.
#pragma once

#include <filesystem>
#include <optional>
#include <string>

namespace CLI {  // NOLINT(readability-identifier-naming): as CLI11 has it
class App;
class Option;
}  // namespace CLI

namespace lockstep {

// Each adds a flag to `command` and returns it; its target must outlive the
// parsing. `which` follows the known names in the flag's help and states the
// default.
CLI::Option* add_dataset_flag(CLI::App& command, std::string& dataset,
                              const std::string& which = "");
CLI::Option* add_model_flag(CLI::App& command, std::string& model,
                            const std::string& which = "");
CLI::Option* add_workers_flag(CLI::App& command, std::optional<int>& workers);
CLI::Option* add_data_dir_flag(CLI::App& command, std::string& data_dir);

// Throws InvalidArgument where `output` exists and is a file of the data in
// `data_dir` (empty: in the default folders), under any name and by any link: a
// file of a known dataset, or an image in a folder of classes.
void check_spares_data(const std::filesystem::path& output,
                       const std::string& data_dir);

// The same for an image at any depth below `folder`.
void check_spares_images(const std::filesystem::path& output,
                         const std::filesystem::path& folder);

}  // namespace lockstep

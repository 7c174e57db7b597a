// `lockstep data show`: prints what is in a dataset.
//
// Threads: the main thread; it starts others.
// Errors:  InvalidArgument for options that do not fit together, and for what
//          is no dataset; SystemError for a file that cannot be written.
#pragma once

#include <cstdint>
#include <string>

#include "apps/data/data_report.h"
#include "apps/data/examine_data.h"

namespace CLI {  // NOLINT(readability-identifier-naming): as CLI11 has it
class App;
}

namespace lockstep {

struct ShowDataOptions {
  std::string data{};           // a folder, or the name of a known dataset
  std::string data_dir{};       // of a known dataset
  std::string json{};           // a file; "-": standard output
  std::string contact_sheet{};  // a file
  std::string augment{};        // transforms, as text
  std::uint64_t seed = 0;
  ExamineDepth depth = ExamineDepth::kHeaders;
  int threads = 1;
};

void add_show_data_options(CLI::App& command, ShowDataOptions& options);

// Call it after parsing. `cores` are those that the process may use.
void complete_show_data_options(ShowDataOptions& options, int cores);

struct ShownData {
  std::string text{};  // for standard output
  bool intact = true;  // no broken image was found
};

// Examines the dataset, and writes the files that the options name.
ShownData show_data(const ShowDataOptions& options);

}  // namespace lockstep

// The flags of `lockstep scale`: its own, and those of the `lockstep train` job
// that it runs.
//
// Errors:  InvalidArgument with one line that names the flag, what was given
//          and what would do.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include "lockstep/tools/train_command.h"

namespace CLI {  // NOLINT(readability-identifier-naming): as CLI11 has it
class App;
}

namespace lockstep {

struct ScaleOptions {
  // World sizes; empty: 1, 2, 4, … up to the number of cores and 8.
  std::vector<int> ranks{};
  // Every way to divide the cores into ranks and compute threads of each, in
  // the place of more and more ranks with the same threads.
  bool layouts = false;
  int repeats = 1;
  // Where the report goes as PREFIX.json, .md, .svg, .png and .gnuplot; empty:
  // nowhere.
  std::string report{};
  bool json = false;  // what is printed
  // A shell command to put beside it; empty: none.
  std::string against{};
  // What a line looks like in which that command says its images a second.
  std::string against_pattern{};
};

// The numbers in lines such as "1,234.5 images/s", "812 samples per second",
// "97 img/sec", but not "97 img/sec per GPU".
extern const char* const kThroughputPattern;

// Adds the flags, with their help, to `command`. `options` must outlive its
// parsing. What it does not know is the job's.
void add_scale_options(CLI::App& command, ScaleOptions& options);

// Fills in what was left open, and refuses what does not fit together.
void complete_scale_options(ScaleOptions& options, int cores);

// What one row of the report runs on.
struct ScaleLayout {
  int ranks = 1;
  int threads = 1;  // compute threads of a rank
  // They are what the row is about, so OMP_NUM_THREADS does not matter.
  bool threads_vary = false;
};

// A row for each number of ranks. With `options.layouts` they share all
// `cores`; otherwise each has as many threads as the largest number of ranks
// leaves to one, since rows with other threads could not be compared.
std::vector<ScaleLayout> layouts_of(const ScaleOptions& options, int cores);

// The job, given as flags of `lockstep train`, on `layout`, with its model
// saved to `model`. A batch that the user gave for a rank stays that of a rank;
// otherwise the global batch is the same on every number of ranks. So do
// threads that the user chose, by --threads or OMP_NUM_THREADS.
TrainRequest scaled_job(std::vector<std::string> arguments,
                        const ScaleLayout& layout,
                        const std::filesystem::path& model, int cores);

// The last number that `pattern` captures in a line of `output` (of which a
// carriage return ends one, too); nothing when there is none. Commas may group
// its digits by threes. InvalidArgument for a pattern that is no regular
// expression with one group.
std::optional<double> find_throughput(const std::string& output,
                                      const std::string& pattern);

// `command` with each "{ranks}" replaced, but not a shell's "${ranks}".
std::string with_ranks(std::string command, int ranks);

}  // namespace lockstep

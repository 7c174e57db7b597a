// The flags of `lockstep scale`: its own, and those of its `lockstep train`
// job.
//
// Errors:  InvalidArgument with one line that names the flag, the given value
//          and the accepted ones.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include "apps/train/train_command.h"

namespace CLI {  // NOLINT(readability-identifier-naming): as CLI11 has it
class App;
}

namespace lockstep {

struct ScaleOptions {
  // World sizes; empty: 1, 2, 4, … up to the number of cores, at most 8.
  std::vector<int> ranks{};
  // Compare every division of the cores into ranks and compute threads, instead
  // of growing world sizes with the same threads.
  bool layouts = false;
  int repeats = 1;
  // Write the report to PREFIX.json, .md, .svg, .png and .gnuplot; empty: no
  // files.
  std::string report{};
  bool json = false;  // the printed format
  // A shell command to compare with; empty: none.
  std::string against{};
  // Matches the line in which that command prints its images per second.
  std::string against_pattern{};
};

// The numbers in lines such as "1,234.5 images/s", "812 samples per second",
// "97 img/sec", but not "97 img/sec per GPU".
extern const char* const kThroughputPattern;

// Adds the flags, with their help, to `command`. `options` must outlive the
// parsing. Unknown flags belong to the job.
void add_scale_options(CLI::App& command, ScaleOptions& options);

// Fills in defaults and refuses contradictory options.
void complete_scale_options(ScaleOptions& options, int cores);

// The resources of one row of the report.
struct ScaleLayout {
  int ranks = 1;
  int threads = 1;  // compute threads per rank
  // The row fixes the threads, so OMP_NUM_THREADS does not matter.
  bool threads_vary = false;
};

// One row per world size. With `options.layouts` each row uses all `cores`;
// otherwise every rank has the number of threads that the largest world size
// allows, so that rows are comparable.
std::vector<ScaleLayout> layouts_of(const ScaleOptions& options, int cores);

// The job, as flags of `lockstep train`, with `layout` and its model saved to
// `model`. A batch size per rank that the user chose stays per rank; otherwise
// the global batch size is the same for every world size. Threads that the user
// chose, by --threads or OMP_NUM_THREADS, stay too.
TrainRequest scaled_job(std::vector<std::string> arguments,
                        const ScaleLayout& layout,
                        const std::filesystem::path& model, int cores);

// The last number that `pattern` captures in a line of `output` (a carriage
// return also ends a line); nothing without a match. Commas may group its
// digits by threes. InvalidArgument for a pattern that is not a regular
// expression with one group.
std::optional<double> find_throughput(const std::string& output,
                                      const std::string& pattern);

// `command` with each "{ranks}" replaced, except a shell's "${ranks}".
std::string with_ranks(std::string command, int ranks);

}  // namespace lockstep

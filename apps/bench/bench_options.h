// The flags of `lockstep bench`, parsed twice: by the command, which refuses
// bad input before it launches anything, and again by each lockstep-bench.
//
// Errors:  InvalidArgument with one line that names the flag, the given value
//          and the accepted ones.
#pragma once

#include <cstddef>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "apps/bench/bench_measure.h"
#include "apps/job/device_flags.h"
#include "apps/job/rank_place.h"

namespace CLI {  // NOLINT(readability-identifier-naming): as CLI11 has it
class App;
}

namespace lockstep {

struct BenchOptions {
  // As typed.
  std::string collective;
  DeviceFlags devices;
  std::string backend = "auto";  // or a backend's name, or "all"
  std::string bytes = "4..100M";
  int step_factor = 4;
  std::string dtype = "float32";
  std::string op = "sum";
  std::string memory;  // shared or plain; empty: shared
  std::optional<int> iterations;
  bool json = false;
  std::string plot;    // a file; empty: none is drawn
  std::string output;  // a file; empty: standard output
  std::optional<int> ranks;

  // Set by complete_bench_options(); the sizes ascend.
  CollectiveCase wanted;
  std::vector<std::size_t> sizes;
};

// Adds the flags, with their help, to `command`. `options` must outlive its
// parsing.
void add_bench_options(CLI::App& command, BenchOptions& options);

// Fills in defaults and refuses contradictory options. When GPUs are requested
// without a number of ranks, it counts them.
void complete_bench_options(BenchOptions& options, const RankPlace& place);

// Does both steps for a rank; `arguments` are those after the program's name.
// Skips the flags that only concern launching.
BenchOptions parse_bench_options(std::span<const char* const> arguments,
                                 const RankPlace& place);

// Parses a size such as "64", "4K" or "100MiB" into bytes; units are powers of
// 1024.
std::size_t parse_bytes(std::string_view text);

// Parses the sizes "4..100M", "1M" or "4,1K,25M". A range gives the first size,
// each `factor` times the one before, and the last. Ascending, each once.
std::vector<std::size_t> parse_sizes(std::string_view text, int factor);

// "4 B", "64 KiB", "25 MiB"; in bytes when no unit divides it.
std::string describe_bytes(std::size_t bytes);

}  // namespace lockstep

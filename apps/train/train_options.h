// The flags of `lockstep train`, parsed twice: by the command, which refuses
// bad input before it launches anything and chooses the number of ranks, and
// again by each lockstep-train that it launches. Flags about training set the
// trainer's options themselves.
//
// Errors:  InvalidArgument with one line that names the flag, the given value
//          and the accepted ones.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <string_view>

#include "apps/job/device_flags.h"
#include "apps/job/rank_place.h"
#include "apps/options/training_options.h"

namespace CLI {  // NOLINT(readability-identifier-naming): as CLI11 has it
class App;
}

namespace lockstep {

// complete_train_options() makes `global_batch` consistent with `batch_size`
// and sets `replicas`; each rank sets `device` by `devices`.
struct TrainOptions : TrainerOptions {
  std::string dataset = "fashion-mnist";   // see kDatasets, or kImageFolder
  std::string data_dir;                    // empty: the dataset's usual place
  std::optional<std::int64_t> batch_size;  // images per step of one rank
  DeviceFlags devices;
  std::optional<int> ranks;    // the world size
  std::optional<int> threads;  // per rank; nothing: from OMP_NUM_THREADS
  std::optional<int> readers;  // workers; nothing: the data set decides
  bool hints = true;           // print next commands at the end
  // The flags in the command line: "--keep". They tell a given value from a
  // default one.
  std::set<std::string, std::less<>> given;
};

// Adds the flags, with their help, to `command`. `options` must outlive its
// parsing.
void add_train_options(CLI::App& command, TrainOptions& options);

// Fills in what depends on the machine and on other flags, and refuses
// contradictory options.
void complete_train_options(TrainOptions& options, const RankPlace& place);

// The help on what --log-dir keeps of `lockstep train` besides ranks' output.
inline constexpr std::string_view kTrainLogs =
    "; and the run's metrics, for TensorBoard and as JSON lines";

// Does both steps for a worker; `arguments` are those after the program's name.
// Skips the flags that only concern launching, but fills in log_dir from
// --log-dir.
TrainOptions parse_train_options(std::span<const char* const> arguments,
                                 const RankPlace& place);

}  // namespace lockstep

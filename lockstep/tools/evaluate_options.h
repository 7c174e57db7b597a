// The flags of `lockstep evaluate` and `lockstep predict`, parsed twice, as
// those of `lockstep train` are: by the command, and by each lockstep-evaluate
// that it launches.
//
// Threads: values and pure functions, but for looking whether files are there.
// Errors:  InvalidArgument with one line that names the flag, what was given
//          and what would do.
#pragma once

#include <optional>
#include <span>
#include <string>
#include <string_view>

#include "lockstep/tools/device_flags.h"
#include "lockstep/tools/rank_place.h"

namespace CLI {  // NOLINT(readability-identifier-naming): as CLI11 has it
class App;
}

namespace lockstep {

// What is done with a trained model.
enum class ModelVerb { kEvaluate, kPredict };

// As it is typed: "evaluate", "predict".
std::string_view name_of(ModelVerb verb);

struct EvaluateOptions {
  ModelVerb verb = ModelVerb::kEvaluate;
  std::string file;            // a trained model, or checkpoints of a run
  std::string model;           // see train/models.h; empty: what the file says
  std::string dataset;         // empty: what the file says
  std::string data_dir;        // empty: the dataset's usual place
  std::string split = "test";  // or train
  std::string json;            // evaluate: where to write JSON; empty: nowhere
  std::string output;          // predict: where to write CSV
  bool probabilities = false;  // predict: of every class
  std::string images;          // predict: a file of images without labels

  DeviceFlags devices;
  ComputeFlags compute;
  std::optional<int> ranks;    // the world size
  std::optional<int> threads;  // compute threads of a rank
};

// Where either says to write: a file, or kStandardOutput.
inline constexpr std::string_view kStandardOutput = "-";
const std::string& result_path(const EvaluateOptions& options);

// Adds the flags of options.verb, with their help, to `command`. `options` must
// outlive its parsing.
void add_evaluate_options(CLI::App& command, EvaluateOptions& options);

// Fills in what was left open (but for what the file says, and data_dir) and
// refuses what does not fit together.
void complete_evaluate_options(EvaluateOptions& options,
                               const RankPlace& place);

// Both steps for a worker: `arguments` are those after the program's name, of
// which the first is the verb. Skips the flags that only concern launching.
EvaluateOptions parse_evaluate_options(std::span<const char* const> arguments,
                                       const RankPlace& place);

}  // namespace lockstep

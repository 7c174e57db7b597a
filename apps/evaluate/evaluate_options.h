// The flags of `lockstep evaluate` and `lockstep predict`, parsed twice, like
// those of `lockstep train`: by the command, and by each lockstep-evaluate that
// it launches.
//
// Threads: any thread; checks whether files exist.
// Errors:  InvalidArgument with one line that names the flag, the given value
//          and the accepted ones.
#pragma once

#include <cstdint>
#include <optional>
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

// The action on a trained model.
enum class ModelVerb { kEvaluate, kPredict };

// As typed: "evaluate", "predict".
std::string_view name_of(ModelVerb verb);

struct EvaluateOptions {
  ModelVerb verb = ModelVerb::kEvaluate;
  std::string file;      // a trained model, or checkpoints of a run
  std::string model;     // see apps/trainer/model/models.h; empty: the file's
  std::string dataset;   // empty: the file's
  std::string data_dir;  // empty: the dataset's usual place
  std::string split = "test";  // or train
  std::string json;            // evaluate: where to write JSON; empty: nowhere
  std::string output;          // predict: where to write CSV
  bool probabilities = false;  // predict: of every class
  std::string images;  // predict: a file or folder of images without labels
  std::int64_t max_broken = 0;             // images per rank
  std::optional<std::int64_t> image_size;  // of a folder; empty: the file's
  std::optional<int> readers;  // workers; nothing: the images decide

  DeviceFlags devices;
  ComputeOptions compute;
  std::optional<int> ranks;    // the world size
  std::optional<int> threads;  // compute threads of a rank
};

// Where either verb writes: a file, or kStandardOutput.
inline constexpr std::string_view kStandardOutput = "-";
const std::string& result_path(const EvaluateOptions& options);

// Adds the flags of options.verb, with their help, to `command`. `options` must
// outlive its parsing.
void add_evaluate_options(CLI::App& command, EvaluateOptions& options);

// Fills in defaults, except those that the file gives and data_dir, and refuses
// contradictory options.
void complete_evaluate_options(EvaluateOptions& options,
                               const RankPlace& place);

// Does both steps for a worker; `arguments` are those after the program's name,
// starting with the verb. Skips the flags that only concern launching.
EvaluateOptions parse_evaluate_options(std::span<const char* const> arguments,
                                       const RankPlace& place);

}  // namespace lockstep

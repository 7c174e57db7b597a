#include "apps/evaluate/evaluate_options.h"

#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <array>
#include <filesystem>
#include <system_error>
#include <utility>

#include "apps/job/data_flags.h"
#include "apps/job/flags.h"
#include "apps/job/launch_flags.h"
#include "apps/job/training_flag_parser.h"
#include "lockstep/base/error.h"
#include "src/base/suggest.h"
#include "src/data/transform/image_folder_splits.h"

namespace lockstep {
namespace {

namespace fs = std::filesystem;

constexpr std::array<std::string_view, 2> kSplits{"test", "train"};
constexpr std::array<std::string_view, 2> kVerbs{"evaluate", "predict"};

void add_rank_flags(CLI::App& command, EvaluateOptions& options) {
  command
      .add_option("-n,--ranks,--nproc-per-node", options.ranks,
                  "Processes that share the images [the cores, up to 8]")
      ->check(whole_number(1, kMostRanksOfAHost))
      ->type_name("N");
  command
      .add_option("--threads", options.threads,
                  "Compute threads per rank; the last bits of results depend "
                  "on it [1]")
      ->check(whole_number(1, kMostThreadsOfARank));
}

void add_result_flags(CLI::App& command, EvaluateOptions& options) {
  switch (options.verb) {
    case ModelVerb::kEvaluate:
      command
          .add_option("--json", options.json,
                      "Write the results there as JSON; -: to standard output, "
                      "instead of the table")
          ->type_name("FILE");
      return;
    case ModelVerb::kPredict:
      command
          .add_option("-o,--output", options.output,
                      "Where to write the predictions as CSV; -: to standard "
                      "output")
          ->type_name("FILE");
      command.add_flag("--probabilities", options.probabilities,
                       "Write the probability of every class");
      command
          .add_option("--images", options.images,
                      "Images without labels, instead of the data set's: "
                      "a folder of JPEG and PNG files, one such file, an IDX "
                      "file, or a tensor of bytes as safetensors")
          ->type_name("PATH")
          ->excludes("--split")
          ->excludes("--data-dir");
      return;
  }
}

bool is_same_file(const std::string& one, const std::string& other) {
  std::error_code unknown;  // a missing file counts as another file
  return fs::equivalent(one, other, unknown);
}

// Only the command checks the disk, because ranks may run on other hosts.
void check_are_there(const EvaluateOptions& options, const RankPlace& place) {
  if (place.world_size) return;
  std::error_code unreadable;
  if (!fs::exists(options.file, unreadable))
    throw InvalidArgument(fmt::format(
        "there is no file \"{}\": name one that lockstep train wrote, by "
        "--output or into --checkpoint-dir",
        options.file));
  if (!options.images.empty() && !fs::exists(options.images, unreadable))
    throw InvalidArgument(fmt::format(
        "there is no file \"{}\": --images names the file of the images",
        options.images));
}

void check_files(const EvaluateOptions& options, const RankPlace& place) {
  const std::string_view verb = name_of(options.verb);
  const bool predicts = options.verb == ModelVerb::kPredict;
  if (options.file.empty())
    throw InvalidArgument(
        fmt::format("{} needs a trained model: lockstep {} MODEL.safetensors{}",
                    verb, verb, predicts ? " --output predictions.csv" : ""));
  if (predicts && options.output.empty())
    throw InvalidArgument(
        "predict needs --output, the file for the predictions, or --output - "
        "for standard output");
  check_are_there(options, place);
  for (const auto& [file, what] :
       {std::pair(options.file, "model"), std::pair(options.images, "images")})
    if (is_same_file(result_path(options), file))
      throw InvalidArgument(
          fmt::format("\"{}\" would overwrite the {}: write to another file",
                      result_path(options), what));
  if (options.images.empty())
    check_spares_data(result_path(options), options.data_dir);
  else
    check_spares_images(result_path(options), options.images);
}

}  // namespace

std::string_view name_of(ModelVerb verb) {
  return kVerbs[static_cast<std::size_t>(verb)];
}

const std::string& result_path(const EvaluateOptions& options) {
  return options.verb == ModelVerb::kPredict ? options.output : options.json;
}

void add_evaluate_options(CLI::App& command, EvaluateOptions& options) {
  command
      .add_option("MODEL", options.file,
                  "The file that `lockstep train` saved the model to, a "
                  "checkpoint of a run, or a folder of them: the newest")
      ->type_name("");
  add_rank_flags(command, options);
  add_device_flags(command, options.devices, "compute on");
  for (const TrainingFlag& flag : compute_flags(options.compute))
    add_flag(command, flag);
  add_dataset_flag(command, options.dataset, " [as the file says]");
  add_data_dir_flag(command, options.data_dir);
  command.add_option("--split", options.split, "test or train")
      ->check(one_of("split", kSplits))
      ->capture_default_str();
  command
      .add_option("--image-size", options.image_size,
                  "Side of the images that the model sees of a folder [as the "
                  "file says]")
      ->check(whole_number(1, kMostImageSide))
      ->type_name("PIXELS");
  add_workers_flag(command, options.readers);
  add_model_flag(command, options.model, " [as the file says]");
  command
      .add_option("--max-broken", options.max_broken,
                  options.verb == ModelVerb::kEvaluate
                      ? "Images of a folder, per rank, that may be broken and "
                        "are left out; one more is an error"
                      : "Images of a folder, per rank, that may be broken and "
                        "get an empty row; one more is an error")
      ->check(whole_number(0))
      ->capture_default_str()
      ->type_name("N");
  add_result_flags(command, options);
}

void complete_evaluate_options(EvaluateOptions& options,
                               const RankPlace& place) {
  check_files(options, place);
  complete_device_flags(options.devices, options.ranks, place);
  check_compute_flags(options.compute, options.devices);
  options.ranks = settle_ranks(options.ranks, place,
                               std::clamp(place.cores, 1, kMostDefaultRanks));
  if (!options.threads) options.threads = 1;
}

EvaluateOptions parse_evaluate_options(std::span<const char* const> arguments,
                                       const RankPlace& place) {
  const std::string_view verb = arguments.empty() ? "" : arguments.front();
  const auto found = std::ranges::find(kVerbs, verb);
  if (found == kVerbs.end())
    throw InvalidArgument(unknown_name("verb", verb, kVerbs));
  EvaluateOptions options;
  options.verb = static_cast<ModelVerb>(found - kVerbs.begin());
  parse_worker_flags(
      fmt::format("lockstep {}", verb), arguments.subspan(1),
      [&](CLI::App& command) { add_evaluate_options(command, options); });
  complete_evaluate_options(options, place);
  return options;
}

}  // namespace lockstep

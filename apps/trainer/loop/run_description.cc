#include "apps/trainer/loop/run_description.h"

#include <optional>
#include <utility>

#include "apps/options/training_flags.h"
#include "apps/trainer/loop/trained_model.h"
#include "apps/trainer/model/saved_model.h"

namespace lockstep {
namespace {

struct DescribedOption {
  std::string flag;
  std::string value;
  std::string in_checkpoint{};  // its name there, if it is kept
  // Its value for older checkpoints, which do not have it.
  std::optional<std::string> in_older{};
};

using Options = std::vector<DescribedOption>;

Options described(TrainerOptions options) {
  Options all;
  for (const TrainingFlag& flag : training_flags(options))
    if (!flag.shows_in_data)
      all.push_back({long_name(flag), recorded_value(flag), flag.in_checkpoint,
                     flag.in_older});
  all.push_back(
      {"the number of replicas per process", std::to_string(options.replicas)});
  all.push_back(
      {"--device", options.device.substr(0, options.device.find(':'))});
  all.push_back({"--log-dir", options.log_dir.empty() ? "not given" : "given"});
  return all;
}

Options described(const TrainingData& data) {
  Options all{{"the data set", data.facts.title, "dataset"},
              {"the number of training images",
               std::to_string(data.train->size()), "training images"},
              {"the number of test images", std::to_string(data.test->size())}};
  if (!data.contents.empty())
    all.push_back({"the checksum of the training images and their labels",
                   data.contents, "checksum of images", data.contents});
  // Checkpoints of data sets in memory have no such field.
  if (!data.files.empty()) {
    all.push_back({"the size of the images", in_words(data.facts), "images"});
    all.push_back({"the checksum of the files' names", data.files, "files"});
    all.push_back({"--exact-pixels", data.decoding, "decoding"});
    all.push_back({"the classes", class_names_text(data.facts), "classes"});
  }
  return all;
}

std::vector<JobField> fields_of_options(Options options) {
  std::vector<JobField> fields;
  for (DescribedOption& option : options)
    fields.push_back({option.flag, std::move(option.value)});
  return fields;
}

}  // namespace

std::vector<JobField> job_fields(const TrainerOptions& options) {
  return fields_of_options(described(options));
}

std::vector<JobField> job_fields(const TrainingData& data) {
  return fields_of_options(described(data));
}

CheckpointedJob checkpointed_job(const TrainerOptions& options,
                                 const TrainingData& data) {
  CheckpointedJob job;
  if (const auto stem = stem_name(options, data)) {
    job.properties.emplace("stem", *stem);
    TrainerOptions older = options;
    older.stem = name_of(kStems, Stem::kAuto);
    job.defaults.emplace("stem", *stem_name(older, data));
  }
  for (const Options& part : {described(options), described(data)})
    for (const DescribedOption& option : part) {
      if (option.in_checkpoint.empty()) continue;
      job.properties.emplace(option.in_checkpoint, option.value);
      if (option.in_older)
        job.defaults.emplace(option.in_checkpoint, *option.in_older);
    }
  return job;
}

std::vector<std::string> start_notes(const TrainerOptions& options,
                                     const TrainingData& data,
                                     const TrainingResult& result) {
  std::vector<std::string> notes;
  if (result.resumed_from)
    notes.push_back("went on from " + result.resumed_from->string());
  if (const auto stem = stem_name(options, data))
    notes.push_back("the stem of " + options.model + " is " + *stem + " (" +
                    std::string(row_named(kStems, "stem", *stem).meaning) +
                    "); --stem names another");
  if (!result.layers_begun_anew || result.resumed_from) return notes;
  std::string note = "began with the weights of " + options.weights.string();
  const char* between = "; anew: ";
  for (const std::string& layer : *result.layers_begun_anew)
    note += std::exchange(between, ", ") + layer;
  notes.push_back(note);
  return notes;
}

}  // namespace lockstep

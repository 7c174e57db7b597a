#include "apps/trainer/loop/run_description.h"

#include <array>
#include <charconv>
#include <optional>
#include <string_view>
#include <utility>

#include "apps/trainer/loop/trained_model.h"
#include "apps/trainer/model/saved_model.h"

namespace lockstep {
namespace {

struct DescribedOption {
  const char* flag;
  std::string value;
  const char* in_checkpoint = nullptr;  // its name there, if it is kept
  // Its value for older checkpoints, which do not have it.
  std::optional<std::string> in_older{};
};

template <class Number>
std::string text_of(Number number) {
  std::array<char, 32> text{};
  const auto end =
      std::to_chars(text.data(), text.data() + text.size(), number).ptr;
  return {text.data(), end};
}

template <class Number>
std::string text_of(const std::optional<Number>& number,
                    const char* otherwise) {
  return number ? text_of(*number) : otherwise;
}

const char* on_or_off(const bool& option) { return option ? "on" : "off"; }

const char* given_or_not(const std::filesystem::path& path) {
  return path.empty() ? "not given" : "given";
}

// Older checkpoints have "on" and "off".
std::string augmentation(const TrainerOptions& options) {
  if (options.augment == kStandardAugmentation) return "on";
  return options.augment.empty() ? "off" : options.augment;
}

template <class Words>
std::string joined(const Words& words,
                   std::string (*text)(const typename Words::value_type&)) {
  std::string all;
  for (const auto& word : words)
    all.append(all.empty() ? "" : ",").append(text(word));
  return all;
}

std::string resumed_from(const std::string& resume) {
  return resume == "auto" ? resume : given_or_not(resume);
}

using Options = std::vector<DescribedOption>;

void describe_model(const TrainerOptions& options, Options& all) {
  const bool is_mlp = options.model == "mlp";
  all.insert(all.end(),
             {{"--model", options.model, "model"},
              {"--hidden",
               is_mlp ? joined(
                            options.hidden,
                            +[](const std::int64_t& size) {
                              return std::to_string(size);
                            })
                      : "none",
               "hidden"},
              {"--dropout", text_of(options.dropout, "the model's"), "dropout"},
              {"--stem", options.stem},
              {"--augment", augmentation(options), "augmentation"},
              {"--max-broken", std::to_string(options.max_broken)},
              {"--weights", given_or_not(options.weights)},
              {"--seed", std::to_string(options.seed), "seed"}});
}

void describe_steps(const TrainerOptions& options, Options& all) {
  const ScheduleOptions& schedule = options.schedule;
  all.insert(all.end(),
             {{"--epochs", std::to_string(options.epochs)},
              {"--global-batch-size", std::to_string(options.global_batch),
               "global batch size"},
              {"--optimizer", options.optimizer, "optimizer"},
              {"--lr", text_of(learning_rate_of(options))},
              {"--schedule", schedule.name},
              {"--lr-step-size", std::to_string(schedule.step_size)},
              {"--lr-gamma", text_of(schedule.gamma)},
              {"--lr-min", text_of(schedule.min_rate)},
              {"--lr-warmup-epochs", text_of(schedule.warmup_epochs)},
              {"--lr-warmup-decay", text_of(schedule.warmup_decay)},
              {"--momentum",
               options.optimizer == "sgd" ? text_of(options.momentum) : "none",
               "momentum"},
              {"--weight-decay", text_of(options.weight_decay), "weight decay"},
              {"--accumulate", std::to_string(options.accumulate)},
              {"--clip-norm", text_of(options.clip_norm, "not given")},
              {"--on-nan", options.on_nan}});
}

void describe_ranks(const TrainerOptions& options, Options& all) {
  all.insert(
      all.end(),
      {{"--strategy", options.strategy},
       {"the number of replicas per process", std::to_string(options.replicas)},
       {"--sharded", on_or_off(options.sharded)},
       {"--find-unused", on_or_off(options.find_unused)},
       {"--logical-shards", std::to_string(options.logical_shards.value_or(0)),
        "logical shards"},
       {"--hook", options.hook, "hook"},
       {"--sync-bn", on_or_off(options.sync_batch_norm), "sync-bn",
        on_or_off(options.sync_batch_norm)},
       {"--check-consistency",
        std::to_string(options.checks.consistency_steps)},
       {"--show-values", joined(
                             options.checks.show,
                             +[](const std::string& name) { return name; })},
       {"--fingerprint-every",
        std::to_string(options.checks.fingerprint_every)}});
}

void describe_compute(const TrainerOptions& options, Options& all) {
  all.insert(all.end(),
             {{"--device", options.device.substr(0, options.device.find(':'))},
              {"--precision", options.precision, "precision"},
              {"--tf32", on_or_off(options.compute.tf32)},
              {"--channels-last", on_or_off(options.compute.channels_last)},
              {"--cuda-graph", on_or_off(options.cuda_graph)}});
}

void describe_output(const TrainerOptions& options, Options& all) {
  all.insert(
      all.end(),
      {{"--output", given_or_not(options.output)},
       {"--checkpoint-dir", given_or_not(options.checkpoint_dir)},
       {"--checkpoint-every", text_of(options.checkpoint_every, "one epoch")},
       {"--keep", std::to_string(options.keep)},
       {"--checkpoint-format", options.checkpoint_format},
       {"--resume", resumed_from(options.resume)},
       {"--log-dir", given_or_not(options.log_dir)},
       {"--evaluate-every", std::to_string(options.evaluate_every)},
       {"--log-interval", std::to_string(options.log_interval)}});
}

Options described(const TrainerOptions& options) {
  Options all;
  describe_model(options, all);
  describe_steps(options, all);
  describe_ranks(options, all);
  describe_compute(options, all);
  describe_output(options, all);
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
      if (option.in_checkpoint == nullptr) continue;
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

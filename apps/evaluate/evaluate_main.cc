// lockstep-evaluate: one rank of `lockstep evaluate` and `lockstep predict`.
// The launcher starts it with the verb and the flags that the user gave to the
// command; started alone, it is the only rank of a world of size 1.
//
// Exit codes: 0 when everything is written, 2 for invalid flags or environment
// variables, 1 for all other errors.
#include <ATen/Parallel.h>
#include <c10/core/DeviceGuard.h>
#include <torch/version.h>

#include <array>
#include <cerrno>
#include <cstdio>
#include <filesystem>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <system_error>
#include <utility>
#include <vector>

#include "apps/evaluate/evaluate_options.h"
#include "apps/evaluate/image_side.h"
#include "apps/job/device_flags.h"
#include "apps/job/rank_program.h"
#include "apps/trainer/loop/training_device.h"
#include "apps/trainer/model/models.h"
#include "apps/trainer/model/precision.h"
#include "apps/trainer/model/saved_model.h"
#include "lockstep/base/error.h"
#include "lockstep/comm/groups.h"
#include "lockstep/data/image_dataset.h"
#include "lockstep/data/image_folder.h"
#include "lockstep/data/transforms.h"
#include "lockstep/evaluate/evaluation.h"
#include "lockstep/torch/gpu_pass.h"
#include "src/base/log.h"
#include "src/base/printable.h"
#include "src/base/report_text.h"
#include "src/checkpoint/atomic_file.h"
#include "src/checkpoint/rank_zero.h"
#include "src/comm/group/same_job.h"
#include "src/data/data_file.h"
#include "src/data/known_datasets.h"
#include "src/data/transform/image_folder_splits.h"
#include "src/evaluate/evaluation_report.h"
#include "src/evaluate/metrics.h"
#include "src/evaluate/prediction_file.h"
#include "src/evaluate/unlabelled_images.h"
#include "src/launch/worker/cpu_share.h"

namespace lockstep {
namespace {

void print(const std::string& text) {
  if (std::fwrite(text.data(), 1, text.size(), stdout) != text.size() ||
      std::fflush(stdout) != 0)
    throw SystemError("cannot write to standard output", errno);
}

// Writes atomically to a file, or to standard output.
void write(const std::string& text, const std::string& path) {
  if (path == kStandardOutput) return print(text);
  const std::array<std::span<const std::byte>, 1> pieces{
      std::as_bytes(std::span(text))};
  replace_file(path, pieces);
}

// The images of an evaluation, in memory or in files.
struct AskedImages {
  ImageDataset facts;
  std::unique_ptr<const ImageSamples> in_memory{};  // refers to facts
  std::shared_ptr<const ImageFolder> folder{};
  std::string split{};  // of a folder, its name in the directory

  const SampleSource& samples() const {
    return folder ? static_cast<const SampleSource&>(*folder) : *in_memory;
  }
};

// The model, the data and the device of an evaluation.
struct Inquiry {
  const EvaluateOptions& flags;
  const SavedModel& saved;
  const AskedImages& images;
  Classifier& model;
  at::Device device;  // the model's
  std::shared_ptr<ProcessGroup> group;

  EvaluationOptions options() const {
    const int cores = default_threads(usable_cores(), flags.ranks.value());
    return {.classes = std::ssize(images.facts.class_names),
            .batch_size = evaluation_batch(images.samples().shape()),
            .device = device,
            .memory_format = flags.compute.channels_last
                                 ? at::MemoryFormat::ChannelsLast
                                 : at::MemoryFormat::Contiguous,
            .probabilities = flags.probabilities,
            .workers = flags.readers.value_or(images.folder ? cores : 1),
            .max_broken = flags.max_broken,
            .group = group};
  }
};

void evaluate(const Inquiry& asked) {
  const Evaluation evaluation =
      lockstep::evaluate(asked.model, asked.images.samples(), asked.options());
  run_on_rank_zero(*asked.group, "writing the results", [&] {
    // A folder's names may be any bytes.
    std::vector<std::string> names;
    for (const std::string& name : asked.images.facts.class_names)
      names.push_back(printable(name));
    const EvaluationSubject subject{.model = asked.saved.name,
                                    .file = asked.saved.file,
                                    .trained_on = asked.saved.dataset,
                                    .dataset = asked.images.facts.title,
                                    .split = asked.images.split.empty()
                                                 ? asked.flags.split
                                                 : asked.images.split,
                                    .ranks = asked.group->size(),
                                    .class_names = names};
    const std::string& json = asked.flags.json;
    if (!json.empty()) write(to_json(evaluation, subject), json);
    if (json != kStandardOutput) print(to_text(evaluation, subject));
  });
}

template <class Element>
std::span<const Element> elements(const at::Tensor& tensor) {
  if (!tensor.defined()) return {};
  return {tensor.const_data_ptr<Element>(),
          static_cast<std::size_t>(tensor.numel())};
}

std::vector<std::string> paths_of(const AskedImages& images) {
  std::vector<std::string> paths;
  if (images.folder)
    for (std::int64_t i = 0; i < images.folder->size(); ++i)
      paths.push_back(images.folder->path(i).string());
  return paths;
}

// To standard output, unless that has the predictions.
void say(const std::string& text, const std::string& output) {
  if (output == kStandardOutput)
    log(LogLevel::kWarn, text);
  else
    print(text + "\n");
}

std::string broken_text(const std::vector<BrokenSample>& broken) {
  std::string text = with_thousands(std::ssize(broken)) +
                     (broken.size() == 1 ? " image is" : " images are") +
                     " broken, with an empty row:";
  for (const BrokenSample& sample : broken)
    text += "\n  " + printable(sample.message);
  return text;
}

void predict(const Inquiry& asked) {
  const Predictions found =
      lockstep::predict(asked.model, asked.images.samples(), asked.options());
  run_on_rank_zero(*asked.group, "writing the predictions", [&] {
    const bool labelled = asked.flags.images.empty();
    const auto labels = labelled ? elements<std::int64_t>(found.labels)
                                 : std::span<const std::int64_t>();
    const auto predicted = elements<std::int64_t>(found.predicted);
    const std::string& path = asked.flags.output;
    write(to_csv({.labels = labels,
                  .predicted = predicted,
                  .probability = elements<float>(found.probability),
                  .probabilities = elements<float>(found.probabilities),
                  .class_names = asked.images.facts.class_names,
                  .paths = paths_of(asked.images)}),
          path);
    if (!found.broken.empty()) say(broken_text(found.broken), path);
    if (path == kStandardOutput) return;
    const std::int64_t count = std::ssize(predicted) - std::ssize(found.broken);
    const std::string what = with_thousands(count) + " predictions of " +
                             asked.saved.name + " are in " + path;
    if (!labelled) return print(what + "\n");
    Metrics metrics{.samples = count};
    for (std::size_t i = 0; i < labels.size(); ++i)
      metrics.correct +=
          predicted[i] != kNoLabel && labels[i] == predicted[i] ? 1 : 0;
    print(what + ", " + percent(metrics.accuracy(), 2) + " of them right\n");
  });
}

// The name of the requested data set, or the one in the model's file.
std::string dataset_name(const EvaluateOptions& flags,
                         const SavedModel& saved) {
  // Images of a folder are normalised as ImageNet's, others by the data set.
  const bool of_folder = saved.dataset == kImageFolderTitle;
  if (!flags.dataset.empty() && !saved.dataset.empty() &&
      of_folder != (flags.dataset == kImageFolder))
    throw InvalidArgument(
        "the model in \"" + saved.file + "\" was trained on " + saved.dataset +
        ", whose images are normalised otherwise than those of " +
        flags.dataset +
        "\n  next:    leave out --dataset; predict takes a folder by --images");
  if (!flags.dataset.empty()) return flags.dataset;
  if (saved.dataset == kImageFolderTitle) return std::string(kImageFolder);
  if (const auto name = dataset_titled(saved.dataset); !name.empty())
    return std::string(name);
  throw InvalidArgument("the file \"" + saved.file +
                        "\" does not say what its model was trained "
                        "on\n  next:    name the data set with --dataset");
}

// What the model's file says of its images, for --image-size.
ModelImages images_in(const SavedModel& saved) {
  return {.file = saved.file, .images = saved.images};
}

// What a folder's images become for the model; no images.
ImageDataset images_for(const std::string& dataset,
                        const EvaluateOptions& flags, const SavedModel& saved) {
  const std::int64_t side = image_side(flags.image_size, images_in(saved));
  if (dataset != kImageFolder) {
    ImageDataset facts = describe_dataset(dataset);
    facts.channels = std::ssize(facts.mean);
    facts.height = facts.width = side;
    return facts;
  }
  if (saved.class_names.empty())
    throw InvalidArgument(
        "the file \"" + saved.file +
        "\" does not name the classes of its model\n"
        "  next:    predict with the file that --output of lockstep train "
        "named");
  const Normalize normalize = imagenet_normalize();
  return {.title = std::string(kImageFolderTitle),
          .count = 0,
          .channels = 3,
          .height = side,
          .width = side,
          .images = {},
          .labels = {},
          .class_names = saved.class_names,
          .mean = normalize.mean,
          .standard_deviation = normalize.standard_deviation};
}

std::unique_ptr<AskedImages> in_files(FolderImages images) {
  auto asked = std::make_unique<AskedImages>();
  asked->facts = std::move(images.facts);
  asked->folder = std::move(images.samples);
  asked->split = std::move(images.split);
  return asked;
}

std::unique_ptr<AskedImages> images_of(const EvaluateOptions& flags,
                                       const SavedModel& saved) {
  const std::string name = dataset_name(flags, saved);
  const Split split = flags.split == "train" ? Split::kTrain : Split::kTest;
  std::error_code unreadable;
  if (!flags.images.empty() &&
      (std::filesystem::is_directory(flags.images, unreadable) ||
       has_extension(flags.images, kImageExtensions)))
    return in_files(
        load_unlabelled_folder(flags.images, images_for(name, flags, saved)));
  if (flags.images.empty() && name == kImageFolder)
    return in_files(load_folder_split(
        flags.data_dir, split, image_side(flags.image_size, images_in(saved))));
  if (name == kImageFolder)
    throw InvalidArgument(
        "\"" + flags.images +
        "\" is neither a folder nor a .jpg, .jpeg or .png file, which " +
        (!flags.dataset.empty() ? "--dataset " + std::string(kImageFolder)
                                : "the model in \"" + saved.file + "\"") +
        " needs\n"
        "  next:    name a folder of JPEG and PNG files, or one of them, with "
        "--images");
  const ImageDataset known = describe_dataset(name);
  check_no_image_side(
      flags.image_size, images_in(saved),
      flags.images.empty() ? known.title : "\"" + flags.images + "\"");
  auto asked = std::make_unique<AskedImages>();
  if (!flags.images.empty())
    asked->facts = read_unlabelled_images(flags.images, known);
  else
    asked->facts = load_dataset(name, split, flags.data_dir);
  asked->in_memory = std::make_unique<const ImageSamples>(asked->facts);
  return asked;
}

void put_on(at::Device device, Classifier& model, ProcessGroup& group) {
  tell_out_of_memory({.group = group,
                      .device = device,
                      .what = "putting the model on the GPU",
                      .next = "try a larger GPU, or the CPU (--device cpu)"},
                     [&] { model.to(device); });
}

// What every rank must have been started for. Only rank 0 reads the model's
// file and writes.
std::vector<JobField> job_of(const EvaluateOptions& flags) {
  const auto yes_or_no = [](const bool& yes) { return yes ? "yes" : "no"; };
  const std::string& path = result_path(flags);
  return {
      {"the command", "lockstep " + std::string(name_of(flags.verb))},
      {"--model", flags.model.empty() ? "the file's" : flags.model},
      {"--dataset", flags.dataset.empty() ? "the file's" : flags.dataset},
      {"--split", flags.split},
      {"--image-size",
       flags.image_size ? std::to_string(*flags.image_size) : "the file's"},
      {"--images", flags.images.empty() ? "not given" : "given"},
      {"--probabilities", yes_or_no(flags.probabilities)},
      {"--max-broken", std::to_string(flags.max_broken)},
      {"writing a file", yes_or_no(!path.empty() && path != kStandardOutput)},
      {"--device", flags.devices.device},
      {"--tf32", yes_or_no(flags.compute.tf32)},
      {"--channels-last", yes_or_no(flags.compute.channels_last)}};
}

// Each rank reads the images itself.
void check_same_data(ProcessGroup& group, const AskedImages& images) {
  std::vector<JobField> data{
      {"the data set", images.facts.title},
      {"the number of images", std::to_string(images.samples().size())}};
  if (images.folder)
    data.push_back({"the checksum of the files' names",
                    std::to_string(images.folder->listing_checksum())});
  check_same_job(group, data);
}

int run(const EvaluateOptions& flags, const Settings& settings) {
  at::set_num_threads(flags.threads.value());
  const auto group = init_process_group();
  check_same_job(*group, job_of(flags));
  const at::Device device =
      training_device(device_of_rank(flags.devices, gpu_of_rank(settings)));
  const c10::OptionalDeviceGuard guard(device.is_cpu() ? std::nullopt
                                                       : std::optional(device));
  const std::string& path = result_path(flags);
  if (!path.empty() && path != kStandardOutput)
    run_on_rank_zero(*group, "preparing to write " + path,
                     [&] { prepare_to_replace(path); });
  SavedModel saved = read_saved_model(flags.file, *group);
  if (!flags.model.empty()) saved.name = flags.model;
  const auto images = images_of(flags, saved);
  check_same_data(*group, *images);
  const auto model = rebuild_model(saved, images->facts);
  if (flags.compute.channels_last) store_channels_last(*model);
  if (flags.compute.tf32) allow_tf32();
  put_on(device, *model, *group);
  const Inquiry inquiry{flags, saved, *images, *model, device, group};
  switch (flags.verb) {
    case ModelVerb::kEvaluate:
      evaluate(inquiry);
      break;
    case ModelVerb::kPredict:
      predict(inquiry);
      break;
  }
  // No rank may leave while another still reads its data.
  group->barrier({.label = "the end"}).wait();
  destroy_process_group();
  return 0;
}

}  // namespace
}  // namespace lockstep

int main(int count, char** arguments) {
  return lockstep::run_rank_program(
      {.name = "lockstep-evaluate",
       .library = "LibTorch " TORCH_VERSION,
       .prepare = lockstep::prepare_by(lockstep::parse_evaluate_options,
                                       lockstep::run)},
      count, arguments);
}

#include "apps/trainer/model/saved_model.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <nlohmann/json.hpp>
#include <span>
#include <utility>
#include <variant>
#include <vector>

#include "apps/trainer/model/models.h"
#include "apps/trainer/model/resnet.h"
#include "lockstep/base/error.h"
#include "lockstep/checkpoint/checkpoint.h"
#include "lockstep/comm/groups.h"
#include "lockstep/data/transforms.h"
#include "src/checkpoint/checkpoint_seal.h"
#include "src/checkpoint/checkpoint_search.h"
#include "src/checkpoint/checkpoint_set.h"
#include "src/checkpoint/rank_zero.h"
#include "src/checkpoint/tensor_archive.h"
#include "src/data/known_datasets.h"
#include "src/data/transform/image_folder_splits.h"

namespace lockstep {
namespace {

namespace fs = std::filesystem;

constexpr const char* kModelKey = "lockstep.model";
constexpr const char* kDatasetKey = "lockstep.dataset";
constexpr const char* kImagesKey = "lockstep.images";
constexpr const char* kClassesKey = "lockstep.classes";  // a JSON array
// A run's checkpoint has them among the job's properties: run_checkpoints.cc.
constexpr const char* kJobModelKey = "lockstep.job.model";
constexpr const char* kJobDatasetKey = "lockstep.job.dataset";
constexpr const char* kJobImagesKey = "lockstep.job.images";
constexpr const char* kJobClassesKey = "lockstep.job.classes";

std::string text_of(const SafetensorsMetadata& metadata, const char* key) {
  const auto found = metadata.find(key);
  return found == metadata.end() ? "" : found->second;
}

std::vector<std::string> class_names_in(const std::string& text,
                                        const std::string& file) try {
  if (text.empty()) return {};
  return nlohmann::json::parse(text).get<std::vector<std::string>>();
} catch (const nlohmann::json::exception&) {
  throw InvalidArgument(
      "the file \"" + file +
      "\" names the classes of its model in a form that is not known: \"" +
      text.substr(0, 80) +
      "\"\n  next:    name a file that lockstep train wrote");
}

struct ReadModel {
  std::string file;
  TensorArchive archive;
};

// Of a file or a set, or of the newest checkpoint in a folder. It reads a file
// once: a running writer may delete it before a second time.
ReadModel read_at(const fs::path& path) {
  if (!fs::is_directory(path) || CheckpointSet::is_at(path))
    return {path.string(), read_model_archive(path)};
  auto newest =
      find_newest_and_read(CheckpointFolder(path), [](FoundCheckpoint& found) {
        if (found.set) found.archive = read_model_archive(*found.set);
      });
  if (newest) return {newest->path.string(), std::move(newest->archive)};
  throw InvalidArgument("the folder \"" + path.string() +
                        "\" holds no checkpoint\n  next:    name a trained "
                        "model, or the folder given to --checkpoint-dir");
}

// The output widths of the last, fully connected layers. All our models end in
// such layers, named fc, or fc1, fc2, ….
std::vector<std::int64_t> widths_of(const NamedTensors& tensors) {
  std::vector<std::int64_t> widths;
  const auto add = [&](const std::string& name) {
    const auto found = tensors.find(name + ".weight");
    const bool fits = found != tensors.end() && found->second.dim() == 2;
    if (fits) widths.push_back(found->second.size(0));
    return fits;
  };
  if (add("fc")) return widths;
  for (int i = 1; add("fc" + std::to_string(i));) ++i;
  return widths;
}

// The first few of `lines`; each begins with a line break.
std::string first_of(const std::string& lines) {
  constexpr int kShown = 6;
  std::size_t end = 0;
  for (int i = 0; i < kShown && end != std::string::npos; ++i)
    end = lines.find('\n', end + 1);
  if (end == std::string::npos) return lines;
  const auto more = std::count(lines.begin() + static_cast<std::ptrdiff_t>(end),
                               lines.end(), '\n');
  return lines.substr(0, end) + "\n  and " + std::to_string(more) + " more";
}

[[noreturn]] void refuse(const SavedModel& saved, const std::string& problem,
                         const std::string& next) {
  throw InvalidArgument("the model in \"" + saved.file + "\" " + problem +
                        "\n  next:    " + next);
}

bool is_of_layer(const std::string& tensor, const std::string& layer) {
  return tensor.starts_with(layer + ".");
}

bool has_same_shapes(const std::string& layer, const NamedTensors& ours,
                     const NamedTensors& stored) {
  return std::ranges::all_of(ours, [&](const auto& tensor) {
    if (!is_of_layer(tensor.first, layer)) return true;
    const auto found = stored.find(tensor.first);
    return found != stored.end() &&
           found->second.sizes() == tensor.second.sizes();
  });
}

void check_fit(const SavedModel& saved, const ImageDataset& dataset,
               const std::vector<std::int64_t>& widths) {
  const std::string other =
      dataset.labels.empty() ? "give it images like those of its training"
      : saved.dataset.empty() || saved.dataset == dataset.title
          ? "name the data set that it was trained on with --dataset and "
            "--data-dir"
          : "it was trained on " + saved.dataset + ": name that with --dataset";
  const auto classes = std::ssize(dataset.class_names);
  if (!widths.empty() && widths.back() != classes)
    refuse(saved,
           "tells " + std::to_string(widths.back()) + " classes apart, but " +
               dataset.title + " has " + std::to_string(classes),
           other);
  // Another order of the same number of classes would give wrong labels.
  const auto found = class_names_in(class_names_text(dataset), saved.file);
  if (saved.dataset == dataset.title &&
      saved.class_names.size() == found.size())
    for (std::size_t i = 0; i < found.size(); ++i)
      if (found[i] != saved.class_names[i])
        refuse(saved,
               "knows class " + std::to_string(i) + " as \"" +
                   saved.class_names[i] + "\", but these images have \"" +
                   found[i] + "\" there",
               "name the folder whose classes it was trained on");
  if (!saved.images.empty() && saved.images != in_words(dataset))
    refuse(saved,
           "takes images of " + saved.images + ", but those of " +
               dataset.title + " are " + in_words(dataset),
           other);
}

std::string next_of_other_model(const SavedModel& saved) {
  constexpr const char* kImages =
      ", or images like those of its training with --dataset, --data-dir and "
      "--image-size";
  return (saved.name == saved.name_in_file
              ? "name the model with --model"
              : "name another model than " + saved.name + " with --model") +
         std::string(kImages);
}

// `file` names it in errors. Shares the archive's tensors.
SavedModel saved_model_in(const TensorArchive& archive,
                          const std::string& file) {
  const bool of_run = is_sealed(archive.metadata);
  const std::string name =
      text_of(archive.metadata, of_run ? kJobModelKey : kModelKey);
  return {
      .file = file,
      .name = name,
      .name_in_file = name,
      .dataset =
          text_of(archive.metadata, of_run ? kJobDatasetKey : kDatasetKey),
      .images = text_of(archive.metadata, of_run ? kJobImagesKey : kImagesKey),
      .class_names = class_names_in(
          text_of(archive.metadata, of_run ? kJobClassesKey : kClassesKey),
          file),
      .tensors = model_tensors(archive)};
}

}  // namespace

std::vector<std::string> take_weights(const SavedModel& saved,
                                      const Classifier& model) {
  NamedTensors ours = tensors_of(model), stored = fitted(ours, saved.tensors);
  const auto names = model.named_parameters().keys();
  std::vector<std::string> kept;
  for (const std::string& name : {names.front(), names.back()}) {
    const std::string layer = name.substr(0, name.rfind('.'));
    if (has_same_shapes(layer, ours, stored)) continue;
    for (NamedTensors* tensors : {&ours, &stored})
      std::erase_if(*tensors, [&](const auto& tensor) {
        return is_of_layer(tensor.first, layer);
      });
    kept.push_back(layer);
  }
  const std::string lines = ours.empty()
                                ? differences(tensors_of(model), saved.tensors)
                                : differences(ours, stored);
  if (!lines.empty())
    refuse(saved, "does not fit the model to train:" + first_of(lines),
           saved.name.empty()
               ? "train the model that the file holds: --model, and for an mlp "
                 "--hidden; or name another file"
               : "train the file's model: --model " + saved.name +
                     ", and for an mlp --hidden");
  copy_over(ours, stored);
  return kept;
}

std::string in_words(const ImageDataset& dataset) {
  return std::to_string(dataset.channels) + " x " +
         std::to_string(dataset.height) + " x " + std::to_string(dataset.width);
}

std::string class_names_text(const ImageDataset& dataset) {
  return nlohmann::json(dataset.class_names)
      .dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
}

namespace {

// "[0.485,0.456,0.406]", of the shortest texts of these numbers.
std::string list_of(const std::vector<float>& numbers) {
  std::string text;
  for (const float number : numbers) {
    std::array<char, 32> digits{};
    const auto end =
        std::to_chars(digits.data(), digits.data() + digits.size(), number).ptr;
    text.append(text.empty() ? "" : ",").append(digits.data(), end);
  }
  return "[" + text + "]";
}

// What `transforms`, a resize and a crop, do to images before the model.
SafetensorsMetadata resizing_texts(const std::string& transforms) {
  SafetensorsMetadata texts;
  const Compose composed(transforms);
  for (const Transform& transform : composed.transforms()) {
    if (const auto* resize = std::get_if<Resize>(&transform)) {
      texts["lockstep.resize"] =
          std::to_string(std::get<std::int64_t>(resize->size));
      texts["lockstep.interpolation"] = "bilinear";
    }
    if (const auto* crop = std::get_if<CenterCrop>(&transform))
      texts["lockstep.crop"] =
          std::to_string(std::get<std::int64_t>(crop->size));
  }
  return texts;
}

}  // namespace

SafetensorsMetadata model_metadata(std::string_view name,
                                   const ImageDataset& trained_on) {
  SafetensorsMetadata texts{
      {kModelKey, std::string(name)},
      {kDatasetKey, trained_on.title},
      {kImagesKey, in_words(trained_on)},
      {kClassesKey, class_names_text(trained_on)},
      {"lockstep.mean", list_of(trained_on.mean)},
      {"lockstep.deviation", list_of(trained_on.standard_deviation)}};
  // Images of other data sets have one size.
  if (trained_on.title == kImageFolderTitle)
    texts.merge(resizing_texts(evaluation_text(trained_on.height)));
  return texts;
}

SavedModel read_saved_model(const fs::path& path) {
  const ReadModel model = read_at(path);
  return saved_model_in(model.archive, model.file);
}

SavedModel read_saved_model(const fs::path& path, ProcessGroup& group) {
  constexpr std::string_view kPlace = "reading a trained model";
  SavedModel saved;
  Bytes bytes;
  run_on_rank_zero(group, kPlace, [&] {
    const ReadModel model = read_at(path);
    saved = saved_model_in(model.archive, model.file);
    if (group.size() > 1) bytes = to_bytes(model.archive);
  });
  const auto share = [&](std::span<const std::byte> own) {
    return broadcast_bytes(group, own, 0, {.label = kPlace});
  };
  const Bytes name = share(std::as_bytes(std::span(saved.file)));
  Bytes all = share(bytes);
  if (group.rank() == 0) return saved;
  const std::string file(reinterpret_cast<const char*>(name.data()),
                         name.size());
  return saved_model_in(
      parse_archive(
          std::make_shared<const std::vector<std::byte>>(std::move(all)), file),
      file);
}

std::shared_ptr<Classifier> rebuild_model(const SavedModel& saved,
                                          const ImageDataset& dataset) {
  if (saved.name.empty())
    refuse(saved, "is not known by name: another program wrote the file",
           "name the model with --model");
  std::vector<std::int64_t> widths = widths_of(saved.tensors);
  check_fit(saved, dataset, widths);
  ModelOptions options{.channels = dataset.channels,
                       .height = dataset.height,
                       .width = dataset.width,
                       .classes = std::ssize(dataset.class_names)};
  if (!widths.empty()) widths.pop_back();
  options.hidden = widths;  // which only an mlp uses
  if (const auto first = saved.tensors.find("conv1.weight");
      first != saved.tensors.end())
    options.stem = stem_of_weight(first->second);
  auto model = make_model(saved.name, options);
  const NamedTensors ours = tensors_of(*model);
  const NamedTensors stored = fitted(ours, saved.tensors);
  if (const std::string lines = differences(ours, stored); !lines.empty())
    refuse(saved,
           "is not a " + saved.name + " for images of " + in_words(dataset) +
               ":" + first_of(lines),
           next_of_other_model(saved));
  copy_over(ours, stored);
  return model;
}

}  // namespace lockstep

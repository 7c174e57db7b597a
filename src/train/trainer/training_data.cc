#include "src/train/trainer/training_data.h"

#include <algorithm>
#include <array>
#include <cstdint>
#include <string_view>
#include <system_error>
#include <utility>
#include <variant>
#include <vector>

#include "lockstep/base/error.h"
#include "lockstep/data/image_folder.h"
#include "lockstep/data/transforms.h"
#include "src/data/known_datasets.h"
#include "src/data/transform/transformed_images.h"

namespace lockstep {
namespace {

namespace fs = std::filesystem;

// The transforms that a name of kAugmentations stands for; other texts are
// transforms already.
std::string augmentation_text(const std::string& augment, std::int64_t size) {
  const std::string side = std::to_string(size);
  if (augment == kStandardAugmentation || augment == "imagenet")
    return "random_resized_crop(" + side + ") | hflip";
  if (augment == "cifar") return "random_crop(" + side + ", padding=4) | hflip";
  return augment;
}

// As torchvision's references evaluate: 256 and 224 pixels.
std::string evaluation_text(std::int64_t size) {
  return "resize(" + std::to_string((size * 8 + 3) / 7) + ") | center_crop(" +
         std::to_string(size) + ")";
}

[[noreturn]] void refuse_normalization(const std::string& text) {
  throw InvalidArgument(
      "cannot augment with \"" + text +
      "\": training images are normalised once, as test images are\n"
      "  next:    leave normalize out of --augment");
}

// The transforms with the normalisation of the data set's test images, which
// only random erasing may follow. Other normalised numbers in training than in
// the test would go unnoticed.
Compose normalized(const std::string& text, const Normalize& normalize) {
  std::vector<Transform> all = Compose(text).transforms();
  const auto end = std::ranges::find_if(all, [](const Transform& transform) {
    return std::holds_alternative<Normalize>(transform) ||
           std::holds_alternative<RandomErasing>(transform);
  });
  const auto* given =
      end == all.end() ? nullptr : std::get_if<Normalize>(&*end);
  if (given == nullptr)
    all.insert(end, normalize);
  else if (given->mean != normalize.mean ||
           given->standard_deviation != normalize.standard_deviation)
    refuse_normalization(text);
  const auto normalizes = [](const Transform& transform) {
    return std::holds_alternative<Normalize>(transform);
  };
  if (std::ranges::count_if(all, normalizes) != 1) refuse_normalization(text);
  return Compose(std::move(all));
}

std::shared_ptr<const SampleSource> augmented(const ImageDataset& dataset,
                                              const TrainerOptions& options) {
  if (options.augment.empty())
    return std::make_shared<const ImageSamples>(dataset);
  if (options.augment == kStandardAugmentation)
    return std::make_shared<const ImageSamples>(
        dataset,
        AugmentationOptions{
            .crop_padding = 2, .horizontal_flip = true, .seed = options.seed});
  return std::make_shared<const TransformedImages>(
      dataset,
      normalized(augmentation_text(options.augment, dataset.height),
                 {dataset.mean, dataset.standard_deviation}),
      options.seed);
}

[[noreturn]] void refuse_no_folder() {
  throw InvalidArgument(
      "cannot read an image folder without its place\n"
      "  next:    name the folder that holds train/CLASS/IMAGE and "
      "val/CLASS/IMAGE with --data-dir");
}

// The first of the folders that there is.
fs::path split_folder(const fs::path& directory,
                      const std::vector<std::string>& names) {
  std::error_code unreadable;
  if (!fs::is_directory(directory, unreadable))
    throw InvalidArgument("there is no folder \"" + directory.string() +
                          "\"\n  next:    name the folder that holds "
                          "train/CLASS/IMAGE and val/CLASS/IMAGE with "
                          "--data-dir");
  for (const std::string& name : names)
    if (fs::is_directory(directory / name, unreadable)) return directory / name;
  throw InvalidArgument(
      "cannot use \"" + directory.string() + "\": it has no folder " +
      (names.size() == 1 ? names[0] : names[0] + " or " + names[1]) +
      "\n  next:    name the folder that holds train/CLASS/IMAGE and "
      "val/CLASS/IMAGE with --data-dir");
}

std::shared_ptr<const ImageFolder> open_folder(
    const fs::path& folder, const std::string& transforms,
    const ImageFolderOptions& options,
    const Normalize& normalize = imagenet_normalize()) {
  return std::make_shared<const ImageFolder>(
      folder, normalized(transforms, normalize), options);
}

ImageDataset facts_of(const ImageFolder& folder) {
  const auto [channels, height, width] = folder.shape();
  const Normalize normalize = imagenet_normalize();
  return {
      .title = std::string(kImageFolderTitle),
      .count = 0,
      .channels = channels,
      .height = height,
      .width = width,
      .images = {},
      .labels = {},
      .class_names = {folder.class_names().begin(), folder.class_names().end()},
      .mean = normalize.mean,
      .standard_deviation = normalize.standard_deviation};
}

void check_classes(const ImageFolder& train, const ImageFolder& test,
                   const fs::path& directory) {
  const auto ours = train.class_names(), theirs = test.class_names();
  const auto [one, other] = std::ranges::mismatch(ours, theirs);
  if (one == ours.end() && other == theirs.end()) return;
  const std::string& odd = other == theirs.end()                ? *one
                           : one == ours.end() || *other < *one ? *other
                                                                : *one;
  throw InvalidArgument(
      "cannot use \"" + directory.string() +
      "\": only one of its two splits has the class \"" + odd +
      "\"\n  next:    give the folders of training and of test images the same "
      "classes");
}

TrainingData load_folder(const fs::path& directory,
                         const TrainerOptions& options) {
  if (directory.empty()) refuse_no_folder();
  const std::string seen = evaluation_text(options.image_size);
  const std::string learned =
      options.augment.empty()
          ? seen
          : augmentation_text(options.augment, options.image_size);
  const auto train = open_folder(split_folder(directory, {"train"}), learned,
                                 {.seed = options.seed});
  const auto test = open_folder(split_folder(directory, {"val", "test"}), seen,
                                {.seed = options.seed});
  check_classes(*train, *test, directory);
  return {.facts = facts_of(*test),
          .train = train,
          .test = test,
          .files = std::to_string(train->listing_checksum()) + "-" +
                   std::to_string(test->listing_checksum())};
}

}  // namespace

TrainingData training_data_of(std::shared_ptr<const DatasetSplits> splits,
                              const TrainerOptions& options) {
  // The samples refer to the splits, and own them.
  struct Owner {
    std::shared_ptr<const DatasetSplits> splits;
    std::shared_ptr<const SampleSource> samples;
  };
  const auto owning = [&](std::shared_ptr<const SampleSource> samples) {
    auto owner =
        std::make_shared<const Owner>(Owner{splits, std::move(samples)});
    return std::shared_ptr<const SampleSource>(owner, owner->samples.get());
  };
  const ImageDataset& train = splits->train;
  return {.facts = {.title = train.title,
                    .count = 0,
                    .channels = train.channels,
                    .height = train.height,
                    .width = train.width,
                    .images = {},
                    .labels = {},
                    .class_names = train.class_names,
                    .mean = train.mean,
                    .standard_deviation = train.standard_deviation},
          .train = owning(augmented(train, options)),
          .test = owning(std::make_shared<const ImageSamples>(splits->test)),
          .files = {}};
}

TrainingData load_training_data(const std::string& dataset,
                                const fs::path& directory,
                                const TrainerOptions& options) {
  if (dataset == kImageFolder) return load_folder(directory, options);
  return training_data_of(std::make_shared<const DatasetSplits>(DatasetSplits{
                              load_dataset(dataset, Split::kTrain, directory),
                              load_dataset(dataset, Split::kTest, directory)}),
                          options);
}

FolderImages load_folder_split(const fs::path& directory,
                               const std::string& split, std::int64_t size) {
  if (directory.empty()) refuse_no_folder();
  const auto folder =
      open_folder(split == "train" ? split_folder(directory, {"train"})
                                   : split_folder(directory, {"test", "val"}),
                  evaluation_text(size), {});
  return {.facts = facts_of(*folder), .samples = folder};
}

FolderImages load_unlabelled_folder(const fs::path& folder,
                                    const ImageDataset& like) {
  // Images of other data sets have no border that a crop would remove.
  const std::string transforms = like.title == kImageFolderTitle
                                     ? evaluation_text(like.height)
                                     : "resize((" +
                                           std::to_string(like.height) + ", " +
                                           std::to_string(like.width) + "))";
  ImageFolderOptions options{.labelled = false};
  if (like.channels == 1) options.decode.color = ImageColor::kGray;
  FolderImages found{
      .facts = like,
      .samples = open_folder(folder, transforms, options,
                             {like.mean, like.standard_deviation})};
  found.facts.title = folder.string();
  found.facts.count = found.samples->size();
  return found;
}

}  // namespace lockstep

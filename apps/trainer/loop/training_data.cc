#include "apps/trainer/loop/training_data.h"

#include <cstdint>
#include <span>
#include <utility>

#include "src/checkpoint/checkpoint_checksum.h"
#include "src/data/known_datasets.h"
#include "src/data/transform/image_folder_splits.h"
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

TrainingData load_folder(const fs::path& directory,
                         const TrainerOptions& options) {
  const std::int64_t size = options.image_size;
  FolderSplits splits = load_folder_splits(
      directory,
      {.train_transforms = options.augment.empty()
                               ? evaluation_text(size)
                               : augmentation_text(options.augment, size),
       .train_scaling = options.exact_pixels ? DecodeScaling::kExact
                                             : DecodeScaling::kScaled,
       .size = size,
       .seed = options.seed});
  return {.facts = std::move(splits.facts),
          .train = splits.train,
          .test = splits.test,
          .files = std::to_string(splits.train->listing_checksum()) + "-" +
                   std::to_string(splits.test->listing_checksum()),
          .folders = "train + " + splits.test_folder,
          .decoding = options.exact_pixels ? "exact" : "scaled",
          .contents = {}};
}

// It takes some milliseconds for 60,000 images of 28 x 28 pixels.
std::string checksum_of(const ImageDataset& dataset) {
  CheckpointChecksum checksum;
  checksum.add(std::as_bytes(std::span(dataset.images)));
  checksum.add(std::as_bytes(std::span(dataset.labels)));
  return checksum.hex();
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
          .files = {},
          .folders = {},
          .decoding = {},
          .contents = checksum_of(train)};
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

}  // namespace lockstep

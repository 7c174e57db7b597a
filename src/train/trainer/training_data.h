// What a run learns from and is tested on: the samples of the two splits of one
// data set, in memory or in files that are decoded when they are read.
//
// Threads: immutable once made; threads share it freely.
// Errors:  those of lockstep/data/image_dataset.h and image_folder.h;
//          InvalidArgument for splits that do not fit together and for
//          transforms that do not fit the images.
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <string>

#include "lockstep/data/image_dataset.h"
#include "lockstep/data/image_folder.h"
#include "lockstep/data/loader.h"
#include "src/train/job/training_options.h"

namespace lockstep {

struct TrainingData {
  // The title, the classes and the shape of the images; no images.
  ImageDataset facts;
  std::shared_ptr<const SampleSource> train;
  std::shared_ptr<const SampleSource> test;
  // Stands for the names of all files, which order the samples: ranks must have
  // the same. Empty for a data set in memory.
  std::string files;
};

// The two splits of a data set in memory.
struct DatasetSplits {
  ImageDataset train;
  ImageDataset test;
};

// Training samples are augmented as `options` say.
TrainingData training_data_of(std::shared_ptr<const DatasetSplits> splits,
                              const TrainerOptions& options);

// A data set by name, kImageFolder among them, from `directory` (empty: its
// usual place).
TrainingData load_training_data(const std::string& dataset,
                                const std::filesystem::path& directory,
                                const TrainerOptions& options);

// Images of a folder for a trained model, normalised as `facts` say.
struct FolderImages {
  ImageDataset facts;
  std::shared_ptr<const ImageFolder> samples;
};

// One split of an image folder, "train" or "test" (its folder test, or val
// where there is none), as the model is evaluated: the shorter side resized to
// 8/7 of `size`, then the centre.
FolderImages load_folder_split(const std::filesystem::path& directory,
                               const std::string& split, std::int64_t size);

// The images below `folder`, which have no labels, as those of `like` are: its
// channels, height, width, mean and standard deviation.
FolderImages load_unlabelled_folder(const std::filesystem::path& folder,
                                    const ImageDataset& like);

}  // namespace lockstep

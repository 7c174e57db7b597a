// What a run learns from and is tested on: the samples of the two splits of one
// data set, in memory or in files that are decoded when they are read.
//
// Threads: immutable once made; threads share it freely.
// Errors:  those of lockstep/data/image_dataset.h and of
//          src/data/transform/image_folder_splits.h.
#pragma once

#include <filesystem>
#include <memory>
#include <string>

#include "apps/options/training_options.h"
#include "lockstep/data/image_dataset.h"
#include "lockstep/data/loader.h"

namespace lockstep {

struct TrainingData {
  // The title, the classes and the shape of the images; no images.
  ImageDataset facts;
  std::shared_ptr<const SampleSource> train;
  std::shared_ptr<const SampleSource> test;
  // Stands for the names of all files, which order the samples: ranks must have
  // the same. Empty for a data set in memory.
  std::string files;
  // The names of the folders of training and test images; as above empty.
  std::string folders;
  // How the files of training images are decoded: "exact" or "scaled"; as above
  // empty.
  std::string decoding;
  // The checksum of the training images and their labels in memory; empty for
  // files.
  std::string contents;
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

}  // namespace lockstep

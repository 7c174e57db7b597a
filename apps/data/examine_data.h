// Looks at the datasets that `lockstep data show` is asked about: a folder of
// images, or a known dataset by name.
//
// Threads: the main thread; it starts others.
// Errors:  InvalidArgument for what is no dataset; those of ImageFolder and
//          load_dataset(). A file of a folder that cannot be read or decoded is
//          part of the report.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "apps/data/data_report.h"
#include "lockstep/data/image_dataset.h"
#include "lockstep/data/image_folder.h"

namespace lockstep {

// The folders of classes under `root`, by the names of their splits: all that
// split_folders() finds; if it finds none, `root` itself as "all". A folder
// that holds no folders, but images, is one without labels.
std::vector<std::pair<std::string, std::unique_ptr<ImageFolder>>>
open_image_folders(const std::filesystem::path& root);

// Whether files are decoded as a whole, or only their headers are read.
enum class ExamineDepth { kHeaders, kPixels };

// `root`: what the paths of broken images are relative to.
SplitReport examine_folder(const ImageFolder& folder,
                           const std::filesystem::path& root,
                           ExamineDepth depth, int threads);

SplitReport examine_dataset(const ImageDataset& dataset);

// Samples of a split, to draw.
struct ShownSamples {
  std::vector<std::string> class_names{};
  // The indices of the samples of each class.
  std::vector<std::vector<std::int64_t>> by_class{};
  // The image of a sample, RGB. Throws as decode_image().
  std::function<Image(std::int64_t)> read{};
};

// Images without labels are of one class, "all". Both read from their argument,
// which must outlive the samples.
ShownSamples shown_samples(const ImageFolder& folder);
ShownSamples shown_samples(const ImageDataset& dataset);

}  // namespace lockstep

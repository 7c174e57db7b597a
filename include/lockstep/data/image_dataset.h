// A set of images, usually labelled, that fits into memory, and the well-known
// data sets that can be loaded by name.
//
// Threads: any thread may read it while no thread changes it.
// Errors:  InvalidArgument for an unknown name, a missing directory or file,
//          and malformed contents; the message names the file and the next
//          step. SystemError when a file cannot be read.
#pragma once

#include <cstdint>
#include <filesystem>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace lockstep {

struct ImageDataset {
  std::string title;  // for people: "Fashion-MNIST"
  std::int64_t count = 0;
  std::int64_t channels = 0;
  std::int64_t height = 0;
  std::int64_t width = 0;
  std::vector<std::uint8_t> images;  // count x channels x height x width
  // count indices of class_names; empty for images without labels.
  std::vector<std::int64_t> labels;
  std::vector<std::string> class_names;
  // Statistics of the training set's pixels divided by 255, one per channel.
  std::vector<float> mean;
  std::vector<float> standard_deviation;

  std::int64_t image_elements() const { return channels * height * width; }

  // The pixels of image `index`, channels x height x width.
  std::span<const std::uint8_t> image(std::int64_t index) const {
    return std::span(images).subspan(
        static_cast<std::size_t>(index * image_elements()),
        static_cast<std::size_t>(image_elements()));
  }
};

enum class Split { kTrain, kTest };

// The names that load_dataset() takes.
std::span<const std::string_view> known_datasets();

// The name of the data set with this title; "" for an unknown title.
std::string_view dataset_titled(std::string_view title);

// The facts about `dataset` that need no files: title, class names, mean and
// standard deviation; no images. A caller normalises other images with them for
// a model that was trained on `dataset`.
ImageDataset describe_dataset(std::string_view dataset);

// The default directory of `dataset`: where Debian's package installs it.
std::filesystem::path default_data_directory(std::string_view dataset);

// Loads one split of `dataset` from `directory` (empty: the default one), which
// holds the four IDX files, plain or gzip, or torchvision's folders around
// them.
ImageDataset load_dataset(std::string_view dataset, Split split,
                          const std::filesystem::path& directory = {});

}  // namespace lockstep

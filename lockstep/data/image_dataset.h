// A set of images, as a rule labelled, that fits into memory, and the
// well-known ones that can be loaded by name.
//
// Threads: a value; share it freely while nobody changes it.
// Errors:  InvalidArgument for an unknown name, a missing directory or file,
// and
//          contents that are not as they must be; the message says which file
//          and what to do. SystemError when a file cannot be read.
#pragma once

#include <cstdint>
#include <filesystem>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace lockstep {

struct ImageDataset {
  std::string title;  // as people write it: "Fashion-MNIST"
  std::int64_t count = 0;
  std::int64_t channels = 0;
  std::int64_t height = 0;
  std::int64_t width = 0;
  std::vector<std::uint8_t> images;  // count x channels x height x width
  // count, each an index of class_names; or none, of images without labels.
  std::vector<std::int64_t> labels;
  std::vector<std::string> class_names;
  // Of the training set's pixels divided by 255, a channel each.
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

// The name of the one with this title; "" where none has it.
std::string_view dataset_titled(std::string_view title);

// What is known of `dataset` without its files: title, class names, mean and
// standard deviation; no images. So that other images can be normalised as a
// model wants them that was trained on it.
ImageDataset describe_dataset(std::string_view dataset);

// Where `dataset` lies if nobody says otherwise: where Debian's package puts
// it.
std::filesystem::path default_data_directory(std::string_view dataset);

// Loads one split of `dataset` from `directory` (empty: the default one), which
// holds the four IDX files, plain or gzip, or torchvision's folders around
// them.
ImageDataset load_dataset(std::string_view dataset, Split split,
                          const std::filesystem::path& directory = {});

}  // namespace lockstep

// Images: one of 8-bit pixels, which is decoded from a JPEG or PNG file, and
// datasets of them that lie in memory.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "lockstep/data/loader.h"

namespace lockstep {

// An image of 8-bit pixels, and the decoder of JPEG and PNG files.
//
//   Image image = decode_image(read_data_file(path), path);
//
// Threads: functions may be called from any thread; an Image is a value.
// Errors:  InvalidArgument for contents that are no JPEG or PNG file, that are
//          damaged or truncated, that exceed the limits, and for a form that
//          is not converted (16 bits per sample); the message names the file,
//          the problem and the next step.

struct ImageSize {
  std::int64_t height = 0;
  std::int64_t width = 0;

  friend bool operator==(const ImageSize&, const ImageSize&) = default;
};

struct Image {
  ImageSize size{};
  std::int64_t channels = 3;  // 1: grey; 3: red, green, blue
  // height x width x channels: the channels of a pixel lie side by side.
  std::vector<std::uint8_t> pixels{};
};

enum class ImageColor { kRgb, kGray };

// Whether the orientation that a camera wrote into a file's EXIF block is
// applied: torchvision's loaders ignore it.
enum class ExifOrientation { kIgnore, kApply };

struct DecodeOptions {
  // Grey becomes RGB of three equal channels; RGB becomes grey as in PIL,
  // (19595 R + 38470 G + 7471 B + 32768) >> 16; an alpha channel is dropped, as
  // PIL's convert("RGB") does. CMYK of a JPEG file becomes RGB as it does
  // there, and grey of that.
  ImageColor color = ImageColor::kRgb;
  ExifOrientation orientation = ExifOrientation::kIgnore;
  // An image of more pixels is refused before memory is allocated for it. The
  // default is PIL's: a file of a few kB can state sizes that fill any memory.
  std::int64_t max_pixels = 89'478'485;
};

// The size that the header states, before an orientation is applied. `name`
// names the contents in messages.
ImageSize image_size(std::span<const std::byte> contents,
                     std::string_view name);

// Decodes a whole JPEG or PNG file; its first bytes say which of the two it is.
Image decode_image(std::span<const std::byte> contents, std::string_view name,
                   const DecodeOptions& options = {});

// A set of images, usually labelled, that fits into memory; the well-known data
// sets that can be loaded by name; and the samples that a model learns from
// one.
//
// Threads: any thread may read it while no thread changes it.
// Errors:  InvalidArgument for an unknown name, a missing directory or file,
//          and malformed contents; the message names the file and the next
//          step. SystemError when a file cannot be read.

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
// holds its files, or the folder around them that torchvision or the data set's
// archive makes: of MNIST and Fashion-MNIST the four IDX files, plain or gzip;
// of CIFAR-10 and CIFAR-100 the binary version.
ImageDataset load_dataset(std::string_view dataset, Split split,
                          const std::filesystem::path& directory = {});

struct AugmentationOptions {
  // Pads the image with this many black pixels on each side, then crops at a
  // random place: torchvision's RandomCrop(size, padding). 0 turns it off.
  int crop_padding = 0;
  // Mirrors left and right with probability 1/2: RandomHorizontalFlip().
  bool horizontal_flip = false;
  std::uint64_t seed = 0;
};

// The label of an unlabelled sample.
inline constexpr std::int64_t kNoLabel = -1;

// An ImageDataset as samples for a model: normalised and, on request,
// augmented. Immutable once made, so threads share it freely.
// InvalidArgument for a dataset whose parts do not fit together and for options
// out of range.
class ImageSamples final : public SampleSource {
 public:
  // Pixels become (x / 255 - mean) / standard deviation, in float32, per
  // channel. Without labels in `dataset`, every label is kNoLabel. `dataset`
  // must outlive this object.
  explicit ImageSamples(const ImageDataset& dataset,
                        const AugmentationOptions& options = {});

  std::int64_t size() const override { return dataset_.count; }
  ImageShape shape() const override {
    return {dataset_.channels, dataset_.height, dataset_.width};
  }
  std::int64_t read(std::int64_t index, std::uint64_t epoch,
                    std::span<float> image) const override;
  std::span<const float> levels() const override { return levels_; }
  // Augments like read(); the padding is 0.
  std::int64_t read_pixels(std::int64_t index, std::uint64_t epoch,
                           std::span<std::uint8_t> image) const override;

 private:
  // Where the crop's first pixel lies in the image, and whether it is mirrored.
  struct Placement {
    std::int64_t row = 0;
    std::int64_t column = 0;
    bool mirrored = false;
  };

  Placement place(std::int64_t index, std::uint64_t epoch) const;

  // Writes the value that `values_of(channel)` gives for each pixel of a
  // channel.
  template <class Element, class ValuesOf>
  std::int64_t write(std::int64_t index, std::uint64_t epoch,
                     const ValuesOf& values_of, std::span<Element> image) const;
  template <class Element, class Value>
  void write_channel(std::span<const std::uint8_t> pixels, const Value& value,
                     const Placement& placement, std::span<Element> out) const;

  const ImageDataset& dataset_;
  AugmentationOptions options_;
  std::vector<float> levels_;
};

}  // namespace lockstep

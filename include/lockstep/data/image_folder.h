// A folder of JPEG and PNG files with a subfolder per class, as torchvision's
// ImageFolder reads it, as samples for a Loader.
//
//   const ImageFolder train(
//       "photos/train",
//       Compose("random_resized_crop(224) | hflip | normalize(imagenet)"));
//   Loader loader(train, sampler_sequence(train.size(), sampler));
//
// Classes are the subfolders in the order of their names' bytes; samples are
// the files below them at any depth, a folder's own before those of the folders
// in it, as torchvision lists them. Names may be any bytes. Files whose names
// do not end in .jpg, .jpeg or .png, in any case, are ignored, but for other
// kinds of images, which are refused by name, so that no part of a dataset is
// left out silently. Symbolic links are followed.
//
// Memory: the listing costs the bytes of a file's path below its class, and 8
// more, per file; images are decoded when they are read.
//
// Threads: immutable once made; threads share it freely.
// Errors:  InvalidArgument for a folder without classes or images, a class
//          without images, an image of another kind, transforms whose outputs
//          differ in size, and, from read(), a file that is damaged or no
//          image.
//          SystemError for what cannot be read. The message names the file.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "lockstep/data/image_dataset.h"
#include "lockstep/data/loader.h"
#include "lockstep/data/transforms.h"

namespace lockstep {

// How a JPEG file is decoded that the first transforms make at least four times
// smaller on both sides, by a resize that averages.
enum class DecodeScaling {
  // Whole, as torchvision decodes it on PIL.
  kExact,
  // At 1/2, 1/4 or 1/8 of its size, at least twice that of the result: faster.
  // Pixels of a picture like a photo differ by a few of 255, those of drawings
  // of thin colored lines by up to 40 (docs/results/data.md).
  kScaled,
};

struct ImageFolderOptions {
  DecodeOptions decode{};
  DecodeScaling scaling = DecodeScaling::kScaled;
  // Of the transforms' random numbers.
  std::uint64_t seed = 0;
  // Without labels: the images at any depth below the folder, in the same
  // order, or the one file that is named instead of a folder. There are no
  // classes, and every label is kNoLabel.
  bool labelled = true;
};

class ImageFolder final : public SampleSource {
 public:
  // Lists the files. Every output of `transforms` must have one size: end them
  // with a crop or with a resize to both sides.
  ImageFolder(std::filesystem::path root, Compose transforms,
              const ImageFolderOptions& options = {});
  ~ImageFolder() override;

  std::int64_t size() const override;
  ImageShape shape() const override;

  // Decodes file `index`, only the part that reaches the result, and transforms
  // it. Returns the index of its class.
  std::int64_t read(std::int64_t index, std::uint64_t epoch,
                    std::span<float> image) const override;

  // Unless transforms of numbers other than normalize follow the pixels.
  std::span<const float> levels() const override { return levels_; }
  std::int64_t read_pixels(std::int64_t index, std::uint64_t epoch,
                           std::span<std::uint8_t> image) const override;

  std::span<const std::string> class_names() const { return class_names_; }

  // The path and the label of sample `index`, 0 … size() - 1.
  std::filesystem::path path(std::int64_t index) const;
  std::int64_t label(std::int64_t index) const;

  // CRC-32 of the names of all classes and files: ranks on several hosts
  // compare it, since an index must mean the same file on each. Contents do not
  // count.
  std::uint32_t listing_checksum() const;

 private:
  class Workers;

  void list_unlabelled();
  void list_class(const std::string& name);
  // The path of sample `index` below the folder of its class.
  std::string_view name_in_class(std::int64_t index) const;
  // Overwrites `path`, whose memory is used again.
  void write_path(std::int64_t index, std::string& path) const;

  std::filesystem::path root_;
  Compose transforms_;
  ImageFolderOptions options_;
  ImageShape shape_{};
  std::vector<float> levels_{};
  std::vector<std::string> class_names_{};
  std::vector<std::int64_t> class_ends_{};  // the first sample after each class
  std::string names_{};                     // all paths below their classes
  std::vector<std::size_t> name_ends_{};    // of each sample, in names_
  std::unique_ptr<Workers> workers_;
};

}  // namespace lockstep

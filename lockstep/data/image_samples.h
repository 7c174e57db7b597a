// An ImageDataset as a model wants it: normalised, and augmented if asked.
//
// Threads: immutable once made; share it freely.
// Errors:  InvalidArgument for a dataset whose parts do not fit together and
//          for options out of range.
#pragma once

#include <cstdint>
#include <vector>

#include "lockstep/data/image_dataset.h"
#include "lockstep/data/sample_source.h"

namespace lockstep {

struct AugmentationOptions {
  // Crops at a random place after this many pixels of black were put around
  // the image: torchvision's RandomCrop(size, padding). 0 leaves it as it is.
  int crop_padding = 0;
  // Mirrors left and right, every other time: RandomHorizontalFlip().
  bool horizontal_flip = false;
  std::uint64_t seed = 0;
};

// The label of a sample that has none.
inline constexpr std::int64_t kNoLabel = -1;

class ImageSamples final : public SampleSource {
 public:
  // Pixels become (x / 255 - mean) / standard deviation, in float32, by the
  // channel. Where the dataset has no labels, all are kNoLabel. `dataset` must
  // outlive this object.
  explicit ImageSamples(const ImageDataset& dataset,
                        const AugmentationOptions& options = {});

  std::int64_t size() const override { return dataset_.count; }
  ImageShape shape() const override {
    return {dataset_.channels, dataset_.height, dataset_.width};
  }
  std::int64_t read(std::int64_t index, std::uint64_t epoch,
                    std::span<float> image) const override;
  std::span<const float> levels() const override { return levels_; }
  // Augmented alike: what lies around the image is 0.
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

  // Writes what `values_of(channel)` makes of each of a channel's pixels.
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

// An ImageDataset as samples for a model: normalised and, on request,
// augmented.
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
  // Pads the image with this many black pixels on each side, then crops at a
  // random place: torchvision's RandomCrop(size, padding). 0 turns it off.
  int crop_padding = 0;
  // Mirrors left and right with probability 1/2: RandomHorizontalFlip().
  bool horizontal_flip = false;
  std::uint64_t seed = 0;
};

// The label of an unlabelled sample.
inline constexpr std::int64_t kNoLabel = -1;

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

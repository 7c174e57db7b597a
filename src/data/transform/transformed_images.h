// An ImageDataset as samples that transforms change: each of the images in
// memory is transformed when it is read.
//
// Threads: immutable once made; threads share it freely.
// Errors:  InvalidArgument for transforms whose outputs differ in size, and for
//          a dataset whose parts do not fit together.
#pragma once

#include <cstdint>
#include <span>

#include "lockstep/data/image_dataset.h"
#include "lockstep/data/transforms.h"

namespace lockstep {

class TransformedImages final : public SampleSource {
 public:
  // `dataset` must outlive this object.
  TransformedImages(const ImageDataset& dataset, const Compose& transforms,
                    std::uint64_t seed);

  std::int64_t size() const override { return dataset_.count; }
  ImageShape shape() const override { return shape_; }
  std::int64_t read(std::int64_t index, std::uint64_t epoch,
                    std::span<float> image) const override;

 private:
  const ImageDataset& dataset_;
  Compose transforms_;
  std::uint64_t seed_;
  ImageShape shape_{};
};

}  // namespace lockstep

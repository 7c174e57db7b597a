// A dataset in which every image holds its sample's number.
//
// Threads: like SampleSource.
#pragma once

#include <cstdint>
#include <span>

#include "lockstep/data/loader.h"

namespace lockstep {

// Images of one pixel; pixel and label are the sample's number.
struct NumberedSamples : SampleSource {
  explicit NumberedSamples(std::int64_t samples) : count(samples) {}
  std::int64_t size() const override { return count; }
  ImageShape shape() const override { return {1, 1, 1}; }
  std::int64_t read(std::int64_t index, std::uint64_t /*epoch*/,
                    std::span<float> image) const override {
    image[0] = static_cast<float>(index);
    return index;
  }
  std::int64_t count;
};

}  // namespace lockstep

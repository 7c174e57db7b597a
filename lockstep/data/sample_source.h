// Where the loader's samples come from: one at a time, ready for the model.
//
// A sample is a float32 image and the index of its class. Whatever is random
// about it follows from the source's seed, the epoch and the sample's index
// alone, so that a run can be repeated whoever reads which sample when.
//
// Threads: every method may be called from any thread.
// Errors:  whatever read() throws surfaces in Loader::next().
#pragma once

#include <array>
#include <cstdint>
#include <span>

namespace lockstep {

// Channels, height, width.
using ImageShape = std::array<std::int64_t, 3>;

class SampleSource {
 public:
  virtual ~SampleSource() = default;

  // The number of samples.
  virtual std::int64_t size() const = 0;

  // The shape of every sample.
  virtual ImageShape shape() const = 0;

  // Writes sample `index`, 0 … size() - 1, to `image`, which has the shape's
  // number of elements, and returns its label.
  virtual std::int64_t read(std::int64_t index, std::uint64_t epoch,
                            std::span<float> image) const = 0;
};

}  // namespace lockstep

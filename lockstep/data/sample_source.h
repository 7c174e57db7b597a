// Where the loader's samples come from: one at a time, ready for the model.
//
// A sample is a float32 image and the index of its class. Whatever is random
// about it follows from the source's seed, the epoch and the sample's index
// alone, so that a run can be repeated whoever reads which sample when.
//
// Where images are made of pixels of 256 values, a source may give these
// instead: a quarter of the bytes, for whoever makes numbers of them elsewhere.
//
// Threads: every method may be called from any thread.
// Errors:  whatever reading throws surfaces in Loader::next().
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>

namespace lockstep {

// Channels, height, width.
using ImageShape = std::array<std::int64_t, 3>;

inline constexpr std::size_t kPixelValues = 256;

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

  // Of a source that has pixels, the number that read() gives for each value of
  // one, channels x kPixelValues, as long as the source lives; else nothing.
  virtual std::span<const float> levels() const { return {}; }

  // As read(), but for the pixels. InvalidArgument where there are none.
  virtual std::int64_t read_pixels(std::int64_t index, std::uint64_t epoch,
                                   std::span<std::uint8_t> image) const;
};

}  // namespace lockstep

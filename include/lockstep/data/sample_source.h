// The source of the loader's samples: one at a time, ready for the model.
//
// A sample is a float32 image and the index of its class. Its randomness
// depends only on the source's seed, the epoch and the sample's index, so a run
// is reproducible whichever rank reads a sample, and in any order.
//
// A source of 8-bit pixels may also return the pixels: a quarter of the bytes,
// for a caller that converts them elsewhere.
//
// Threads: every method may be called from any thread.
// Errors:  an error that reading throws surfaces in Loader::next().
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

  // For a source with pixels: the number that read() gives for each pixel
  // value, channels x kPixelValues, valid while the source lives. Otherwise
  // empty.
  virtual std::span<const float> levels() const { return {}; }

  // Like read(), but writes pixels. InvalidArgument for a source without
  // pixels.
  virtual std::int64_t read_pixels(std::int64_t index, std::uint64_t epoch,
                                   std::span<std::uint8_t> image) const;
};

}  // namespace lockstep

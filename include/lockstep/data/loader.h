// Prepares batches ahead of the training loop, in threads of its own.
//
// A Loader makes one pass over the given indices; the caller makes a new one
// for each epoch. Its workers read the samples of a batch together, each into
// its place, so that batches do not depend on their number. When a Batch is
// destroyed, the loader uses its memory again. A batch may outlive the loader.
//
//   Loader loader(samples, sampler_sequence(samples.size(), sampler),
//                 {.batch_size = 64, .epoch = epoch});
//   while (auto batch = loader.next(Deadline::never())) …
//
// Threads: one consumer; a Batch may be destroyed on any thread.
// Errors:  InvalidArgument for options out of range, for an index that the
//          source does not have, and for pixels from a source without them;
//          Timeout when the deadline passes first. An error that the source
//          threw surfaces in place of the batch; of several in a batch, that of
//          the first sample. SystemError where no thread can be started.
#pragma once

#include <array>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "lockstep/base/deadline.h"

namespace lockstep {

// Channels, height, width.
using ImageShape = std::array<std::int64_t, 3>;

inline constexpr std::size_t kPixelValues = 256;

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

// The elements of a batch's images: normalised floats, or the source's pixels,
// 0 … 255.
enum class ImageElements { kFloat32, kPixels };

struct LoaderOptions {
  std::int64_t batch_size = 64;
  // Drops the last batch when it is smaller than the others.
  bool drop_last = false;
  // Passed to the source, whose random augmentation differs by epoch.
  std::uint64_t epoch = 0;
  // The most batches that lie ready or are being filled: with the batches that
  // the consumer holds, all of the loader's memory.
  std::int64_t prefetch = 2;
  // The number of threads that read samples, 1 … 1,024.
  std::int64_t workers = 1;
  ImageElements elements = ImageElements::kFloat32;
  // The number of samples of the pass that may be broken: for which the source
  // throws InvalidArgument, or a SystemError other than a lack of memory or
  // descriptors. The loader reads the next sample of the source in place of
  // each, so that batches stay complete and ranks make equally many steps;
  // Loader::broken() names them. If more are broken, an error surfaces.
  std::int64_t max_broken = 0;
};

struct BrokenSample {
  std::int64_t index = 0;
  std::string message{};  // of the error that the source threw
};

namespace loader_internal {
class Pass;
class PassWorkers;
struct Buffer;
}  // namespace loader_internal

// A batch of samples. Owns its memory until it is destroyed.
class Batch {
 public:
  Batch(Batch&& other) noexcept;
  Batch& operator=(Batch&& other) noexcept;
  ~Batch();

  // The number of samples.
  std::int64_t count() const;
  // The shape of each image.
  const ImageShape& shape() const;
  ImageElements elements() const;
  // count x channels x height x width. Only the one of images() and pixels()
  // that matches the loader's elements is not empty. The holder may write to
  // them.
  std::span<float> images() const;
  std::span<std::uint8_t> pixels() const;
  // count.
  std::span<std::int64_t> labels() const;

 private:
  friend class Loader;
  Batch(std::shared_ptr<loader_internal::Pass> pass,
        std::unique_ptr<loader_internal::Buffer> buffer);

  std::shared_ptr<loader_internal::Pass> pass_;
  std::unique_ptr<loader_internal::Buffer> buffer_;
};

class Loader {
 public:
  // `source` must outlive the loader. The workers start at once; SystemError if
  // the host cannot start all of them.
  Loader(const SampleSource& source, std::vector<std::int64_t> indices,
         const LoaderOptions& options = {});
  // Stops each worker after its current sample.
  ~Loader();
  Loader(const Loader&) = delete;
  Loader& operator=(const Loader&) = delete;

  // The next batch, in the order of the indices, or nothing at the end of the
  // pass. After an error every further call throws the same error.
  std::optional<Batch> next(Deadline deadline);

  // The number of batches in the whole pass.
  std::int64_t batch_count() const;
  // The broken samples of the batches that next() has returned, each once, in
  // the order in which the pass met them. Valid until the next call of next().
  std::span<const BrokenSample> broken() const;
  // The time for which next() has waited: of a training loop, the time that
  // reading samples held it back.
  std::chrono::nanoseconds waited() const;

 private:
  std::unique_ptr<loader_internal::PassWorkers> workers_;
};

}  // namespace lockstep

// Prepares batches ahead of the training loop, in a thread of its own.
//
// A Loader makes one pass over the indices it is given: one is made for each
// epoch. Buffers are recycled: when a Batch is destroyed, its memory goes back
// to the thread. A batch may outlive the loader.
//
//   Loader loader(samples, sampler_sequence(samples.size(), sampler),
//                 {.batch_size = 64, .epoch = epoch});
//   while (auto batch = loader.next(Deadline::never())) …
//
// Threads: one consumer; a Batch may be destroyed on any thread.
// Errors:  InvalidArgument for options out of range, for an index that the
//          source does not have and for pixels, if it has none; Timeout when
//          the deadline passes first; what the source threw, in the place of
//          the batch that it belonged to.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <thread>
#include <vector>

#include "lockstep/base/deadline.h"
#include "lockstep/base/own_process.h"
#include "lockstep/data/sample_source.h"

namespace lockstep {

// What the images of batches are made of: numbers as a model takes them, or the
// source's pixels, 0 … 255.
enum class ImageElements { kFloat32, kPixels };

struct LoaderOptions {
  std::int64_t batch_size = 64;
  // Leaves out the last batch when it is smaller than the others.
  bool drop_last = false;
  // Handed to the source: what is random in its samples differs by epoch.
  std::uint64_t epoch = 0;
  // So many batches lie ready at most.
  std::int64_t prefetch = 2;
  ImageElements elements = ImageElements::kFloat32;
};

namespace loader_internal {
class Pass;
struct Buffer;
}  // namespace loader_internal

// Some samples. Owns its memory until it is destroyed.
class Batch {
 public:
  Batch(Batch&& other) noexcept;
  Batch& operator=(Batch&& other) noexcept;
  ~Batch();

  // The number of samples.
  std::int64_t count() const;
  // Of one image; the same for all.
  const ImageShape& shape() const;
  ImageElements elements() const;
  // count x channels x height x width; the one that the elements are, and the
  // other empty. The holder may write to them.
  std::span<float> images() const;
  std::span<std::uint8_t> pixels() const;
  // count.
  std::span<std::int64_t> labels() const;

 private:
  friend class loader_internal::Pass;
  Batch(std::shared_ptr<loader_internal::Pass> pass,
        std::unique_ptr<loader_internal::Buffer> buffer);

  std::shared_ptr<loader_internal::Pass> pass_;
  std::unique_ptr<loader_internal::Buffer> buffer_;
};

class Loader {
 public:
  // `source` must outlive the loader. Preparing begins at once.
  Loader(const SampleSource& source, std::vector<std::int64_t> indices,
         const LoaderOptions& options = {});
  // Stops the thread after the sample it is reading.
  ~Loader();
  Loader(const Loader&) = delete;
  Loader& operator=(const Loader&) = delete;

  // The next batch, in the order of the indices, or nothing when the pass is
  // over. After an error every further call throws the same.
  std::optional<Batch> next(Deadline deadline);

  // How many batches the whole pass has.
  std::int64_t batch_count() const;

 private:
  const OwnProcess process_;
  std::shared_ptr<loader_internal::Pass> pass_;
  std::thread thread_;
};

}  // namespace lockstep

#include "lockstep/data/loader.h"

#include <fmt/format.h>

#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <deque>
#include <exception>
#include <thread>
#include <utility>

#include "lockstep/base/error.h"
#include "src/base/mutex.h"
#include "src/base/own_process.h"

namespace lockstep {
namespace loader_internal {

struct Buffer {
  std::vector<float> images;
  std::vector<std::uint8_t> pixels;
  std::vector<std::int64_t> labels;
  std::int64_t count = 0;
};

// The state that the loader, its thread and the batches share. It outlives the
// loader while a batch exists.
class Pass : public std::enable_shared_from_this<Pass> {
 public:
  Pass(const SampleSource& source, std::vector<std::int64_t> indices,
       const LoaderOptions& options)
      : source_(&source),
        indices_(std::move(indices)),
        options_(options),
        shape_(source.shape()) {}

  std::int64_t batch_count() const {
    const auto samples = static_cast<std::int64_t>(indices_.size());
    const std::int64_t full = samples / options_.batch_size;
    const bool rest = samples % options_.batch_size != 0;
    return rest && !options_.drop_last ? full + 1 : full;
  }

  const ImageShape& shape() const { return shape_; }
  ImageElements elements() const { return options_.elements; }

  // The thread's work: fills batches until all are filled or stop() is called.
  void produce() noexcept {
    try {
      for (std::int64_t batch = 0; batch < batch_count(); ++batch) {
        auto buffer = wait_for_turn();
        if (buffer == nullptr || !fill(*buffer, batch)) return;
        const MutexLock lock(mutex_);
        ready_.push_back(std::move(buffer));
        changed_.notify_all();
      }
    } catch (...) {
      const MutexLock lock(mutex_);
      error_ = std::current_exception();
      changed_.notify_all();
    }
  }

  void stop() {
    const MutexLock lock(mutex_);
    stopped_.store(true);
    free_.clear();
    changed_.notify_all();
  }

  std::optional<Batch> next(Deadline deadline) {
    MutexLock lock(mutex_);
    if (taken_ == batch_count()) return std::nullopt;
    while (ready_.empty() && error_ == nullptr) {
      if (deadline.expired())
        throw Timeout(fmt::format(
            "batch {} of {} was not ready in time\n"
            "  likely:  reading samples is slower than training\n"
            "  next:    give it more time, or read from a faster disk",
            taken_ + 1, batch_count()));
      wait(lock, deadline);
    }
    if (ready_.empty()) std::rethrow_exception(error_);
    auto buffer = std::move(ready_.front());
    ready_.pop_front();
    ++taken_;
    changed_.notify_all();
    return Batch(shared_from_this(), std::move(buffer));
  }

  void recycle(std::unique_ptr<Buffer> buffer) {
    const MutexLock lock(mutex_);
    if (!stopped_.load()) free_.push_back(std::move(buffer));
  }

 private:
  // Waiting for time_point::max() overflows in some libraries.
  void wait(MutexLock& lock, Deadline deadline) {
    if (deadline.is_never())
      changed_.wait(lock);
    else
      changed_.wait_until(lock, deadline.when());
  }

  // Waits until the next batch may be prepared and returns its buffer; nothing
  // when stopped. It allocates a new buffer when the consumer holds all others,
  // so holding batches never blocks the pass.
  std::unique_ptr<Buffer> wait_for_turn() {
    MutexLock lock(mutex_);
    while (!stopped_.load() &&
           std::cmp_greater_equal(ready_.size(), options_.prefetch))
      wait(lock, Deadline::never());
    if (stopped_.load()) return nullptr;
    if (free_.empty()) return std::make_unique<Buffer>();
    auto buffer = std::move(free_.back());
    free_.pop_back();
    return buffer;
  }

  // Returns whether it reached the end before stop() was called.
  bool fill(Buffer& buffer, std::int64_t batch) {
    const auto begin = static_cast<std::size_t>(batch * options_.batch_size);
    const std::size_t count = std::min(
        static_cast<std::size_t>(options_.batch_size), indices_.size() - begin);
    buffer.labels.resize(count);
    buffer.count = static_cast<std::int64_t>(count);
    const auto indices = std::span(indices_).subspan(begin, count);
    if (options_.elements == ImageElements::kPixels)
      return read_all(buffer.pixels, &SampleSource::read_pixels, indices,
                      buffer.labels);
    return read_all(buffer.images, &SampleSource::read, indices, buffer.labels);
  }

  // The same, with `read` for each sample.
  template <class Element>
  bool read_all(std::vector<Element>& images,
                std::int64_t (SampleSource::*read)(std::int64_t, std::uint64_t,
                                                   std::span<Element>) const,
                std::span<const std::int64_t> indices,
                std::span<std::int64_t> labels) {
    const auto elements =
        static_cast<std::size_t>(shape_[0] * shape_[1] * shape_[2]);
    images.resize(indices.size() * elements);
    for (std::size_t i = 0; i < indices.size(); ++i) {
      if (stopped_.load()) return false;
      labels[i] =
          (source_->*read)(indices[i], options_.epoch,
                           std::span(images).subspan(i * elements, elements));
    }
    return true;
  }

  // Only the thread reads the source, and the loader joins the thread.
  const SampleSource* source_;
  const std::vector<std::int64_t> indices_;
  const LoaderOptions options_;
  const ImageShape shape_;

  std::atomic<bool> stopped_{false};
  Mutex mutex_;
  std::condition_variable_any changed_;
  std::deque<std::unique_ptr<Buffer>> ready_ LOCKSTEP_GUARDED_BY(mutex_);
  std::vector<std::unique_ptr<Buffer>> free_ LOCKSTEP_GUARDED_BY(mutex_);
  std::exception_ptr error_ LOCKSTEP_GUARDED_BY(mutex_);
  std::int64_t taken_ LOCKSTEP_GUARDED_BY(mutex_) = 0;
};

// The thread of a pass, from here to the destructor.
class PassThread {
 public:
  explicit PassThread(std::shared_ptr<Pass> pass)
      : pass_(std::move(pass)),
        thread_([shared = pass_] { shared->produce(); }) {}
  ~PassThread() {
    if (!process_.is_current()) {
      thread_.detach();
      return;
    }
    pass_->stop();
    thread_.join();
  }
  PassThread(const PassThread&) = delete;
  PassThread& operator=(const PassThread&) = delete;

  Pass& pass() const { return *pass_; }

 private:
  const OwnProcess process_;
  std::shared_ptr<Pass> pass_;
  std::thread thread_;
};

}  // namespace loader_internal

namespace {

void check(const SampleSource& source, std::span<const std::int64_t> indices,
           const LoaderOptions& options) {
  if (options.batch_size < 1)
    throw InvalidArgument(fmt::format(
        "cannot load batches of {} samples: the batch size must be at least 1",
        options.batch_size));
  if (options.prefetch < 1)
    throw InvalidArgument(fmt::format(
        "cannot prefetch {} batches: it must be at least 1", options.prefetch));
  if (options.elements == ImageElements::kPixels && source.levels().empty())
    throw InvalidArgument(
        "cannot load pixels: this source has no pixels\n"
        "  next:    load float32");
  for (std::size_t i = 0; i < indices.size(); ++i)
    if (indices[i] < 0 || indices[i] >= source.size())
      throw InvalidArgument(
          fmt::format("cannot load sample {} (number {} of the pass): the data "
                      "set has {} samples, counted from 0",
                      indices[i], i, source.size()));
}

}  // namespace

Batch::Batch(std::shared_ptr<loader_internal::Pass> pass,
             std::unique_ptr<loader_internal::Buffer> buffer)
    : pass_(std::move(pass)), buffer_(std::move(buffer)) {}

Batch::Batch(Batch&& other) noexcept = default;

Batch& Batch::operator=(Batch&& other) noexcept {
  // Swapping passes our memory to the other's destructor, which recycles it.
  std::swap(pass_, other.pass_);
  std::swap(buffer_, other.buffer_);
  return *this;
}

Batch::~Batch() {
  if (buffer_ != nullptr) pass_->recycle(std::move(buffer_));
}

std::int64_t Batch::count() const { return buffer_->count; }
const ImageShape& Batch::shape() const { return pass_->shape(); }
ImageElements Batch::elements() const { return pass_->elements(); }
std::span<float> Batch::images() const { return buffer_->images; }
std::span<std::uint8_t> Batch::pixels() const { return buffer_->pixels; }
std::span<std::int64_t> Batch::labels() const { return buffer_->labels; }

Loader::Loader(const SampleSource& source, std::vector<std::int64_t> indices,
               const LoaderOptions& options) {
  check(source, indices, options);
  thread_ = std::make_unique<loader_internal::PassThread>(
      std::make_shared<loader_internal::Pass>(source, std::move(indices),
                                              options));
}

Loader::~Loader() = default;

std::optional<Batch> Loader::next(Deadline deadline) {
  return thread_->pass().next(deadline);
}

std::int64_t Loader::batch_count() const {
  return thread_->pass().batch_count();
}

std::int64_t SampleSource::read_pixels(std::int64_t, std::uint64_t,
                                       std::span<std::uint8_t>) const {
  throw InvalidArgument(
      "cannot read pixels: this source has no pixels; use read()");
}

}  // namespace lockstep

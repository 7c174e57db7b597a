#include "lockstep/data/loader.h"

#include <fmt/format.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <deque>
#include <exception>
#include <system_error>
#include <thread>
#include <utility>

#include "lockstep/base/error.h"
#include "src/base/mutex.h"
#include "src/base/own_process.h"
#include "src/data/broken_samples.h"

namespace lockstep {
namespace loader_internal {

// Samples that were found broken in place of one of a batch.
struct Replacement {
  std::int64_t place = 0;  // in the batch
  SampleRange broken{};    // from the sample that belongs there on
};

// What ended a worker's part of a batch.
struct Failure {
  std::int64_t place = 0;
  std::exception_ptr error{};
};

struct Buffer {
  std::vector<float> images;
  std::vector<std::uint8_t> pixels;
  std::vector<std::int64_t> labels;
  std::int64_t count = 0;

  // While the batch is being filled, guarded by the mutex of its pass.
  std::int64_t first = 0;  // of the batch's indices in the pass
  std::int64_t claimed = 0;
  std::int64_t finished = 0;
  std::vector<Replacement> replacements{};
  std::optional<Failure> failure{};  // of the first sample
};

// Samples of one batch that one worker reads: from `begin` on, `count` of them.
struct Claim {
  Buffer* buffer = nullptr;
  std::int64_t begin = 0;
  std::int64_t count = 0;
};

// The state that the loader, its workers and the batches share. It outlives the
// loader while a batch exists.
class Pass : public std::enable_shared_from_this<Pass> {
 public:
  Pass(const SampleSource& source, std::vector<std::int64_t> indices,
       const LoaderOptions& options)
      : source_(&source),
        indices_(std::move(indices)),
        options_(options),
        shape_(source.shape()),
        broken_(source.size(), options.max_broken) {}

  std::int64_t batch_count() const {
    const auto samples = std::ssize(indices_);
    const std::int64_t full = samples / options_.batch_size;
    const bool rest = samples % options_.batch_size != 0;
    return rest && !options_.drop_last ? full + 1 : full;
  }

  const ImageShape& shape() const { return shape_; }
  ImageElements elements() const { return options_.elements; }
  std::chrono::nanoseconds waited() const { return waited_; }
  std::span<const BrokenSample> broken() const { return broken_.all(); }

  // A worker's loop: reads samples until all are read or stop() is called.
  void work() noexcept {
    while (const auto claim = next_claim()) {
      std::optional<Failure> failure;
      for (std::int64_t i = 0; i < claim->count && !failure && !stopped_.load();
           ++i)
        failure = read_or_replace(*claim->buffer, claim->begin + i);
      finish(*claim, failure);
    }
  }

  void stop() {
    const MutexLock lock(mutex_);
    stopped_.store(true);
    free_.clear();
    changed_.notify_all();
  }

  std::optional<Batch> next(Deadline deadline) {
    if (!process_.is_current())
      throw InvalidArgument(
          "cannot take a batch of a Loader in a forked process: the workers "
          "are in its parent\n"
          "  next:    make a Loader after the fork");
    MutexLock lock(mutex_);
    if (error_ != nullptr) std::rethrow_exception(error_);
    if (taken_ == batch_count()) return std::nullopt;
    if (!is_ready()) wait_for_batch(lock, deadline);
    auto buffer = std::move(open_.front());
    open_.pop_front();
    try {
      error_ = error_of(*buffer);
    } catch (...) {
      error_ = std::current_exception();
    }
    if (error_ != nullptr) std::rethrow_exception(error_);
    ++taken_;
    changed_.notify_all();
    return Batch(shared_from_this(), std::move(buffer));
  }

  void recycle(std::unique_ptr<Buffer> buffer) {
    // In a forked process a worker of the parent may hold the mutex for ever.
    if (!process_.is_current()) return;
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

  bool is_ready() const LOCKSTEP_REQUIRES(mutex_) {
    return !open_.empty() && open_.front()->finished == open_.front()->count;
  }

  void wait_for_batch(MutexLock& lock, Deadline deadline)
      LOCKSTEP_REQUIRES(mutex_) {
    const auto start = std::chrono::steady_clock::now();
    const auto none_comes = [&]() LOCKSTEP_REQUIRES(mutex_) {
      return open_.empty() && no_memory_ != nullptr;
    };
    while (!is_ready() && !none_comes() && !deadline.expired())
      wait(lock, deadline);
    waited_ += std::chrono::steady_clock::now() - start;
    if (is_ready()) return;
    if (none_comes()) std::rethrow_exception(no_memory_);
    throw Timeout(fmt::format(
        "batch {} of {} was not ready in time\n"
        "  likely:  reading samples is slower than training\n"
        "  next:    give it more time or more workers, or read from a faster "
        "disk",
        taken_ + 1, batch_count()));
  }

  // Waits until there are samples to read; nothing at the end of the pass.
  std::optional<Claim> next_claim() noexcept {
    MutexLock lock(mutex_);
    while (!stopped_.load() && !failed_) {
      if (!open_.empty() && open_.back()->claimed < open_.back()->count)
        return claim_of(*open_.back());
      if (opened_ == batch_count()) return std::nullopt;
      if (std::cmp_less(open_.size(), options_.prefetch))
        try_open();
      else
        wait(lock, Deadline::never());
    }
    return std::nullopt;
  }

  // Workers share a batch in parts: large enough that the lock costs nothing,
  // small enough that all workers finish at about the same time.
  Claim claim_of(Buffer& buffer) LOCKSTEP_REQUIRES(mutex_) {
    constexpr std::int64_t kPartsPerWorker = 4;
    const std::int64_t parts =
        options_.workers == 1 ? 1 : options_.workers * kPartsPerWorker;
    const std::int64_t size = (buffer.count + parts - 1) / parts;
    const Claim claim{&buffer, buffer.claimed,
                      std::min(size, buffer.count - buffer.claimed)};
    buffer.claimed += claim.count;
    return claim;
  }

  void try_open() noexcept LOCKSTEP_REQUIRES(mutex_) {
    try {
      open_next();
    } catch (...) {
      no_memory_ = std::current_exception();
      failed_ = true;
      changed_.notify_all();
    }
  }

  // Begins the next batch. It allocates a new buffer when the consumer holds
  // all others, so holding batches never blocks the pass.
  void open_next() LOCKSTEP_REQUIRES(mutex_) {
    auto buffer = std::make_unique<Buffer>();
    if (!free_.empty()) {
      buffer = std::move(free_.back());
      free_.pop_back();
    }
    const std::int64_t first = opened_ * options_.batch_size;
    const std::int64_t count =
        std::min(options_.batch_size, std::ssize(indices_) - first);
    const auto elements = static_cast<std::size_t>(count) * image_elements();
    if (options_.elements == ImageElements::kPixels)
      buffer->pixels.resize(elements);
    else
      buffer->images.resize(elements);
    buffer->labels.resize(static_cast<std::size_t>(count));
    buffer->count = count;
    buffer->first = first;
    buffer->claimed = buffer->finished = 0;
    buffer->replacements.clear();
    buffer->failure.reset();
    open_.push_back(std::move(buffer));
    ++opened_;
    // Other workers have parts of it to read.
    changed_.notify_all();
  }

  // Reads sample `place` of a batch, or one in its place if options_.max_broken
  // permits. Returns why none could be read.
  std::optional<Failure> read_or_replace(Buffer& buffer,
                                         std::int64_t place) noexcept {
    try {
      const std::int64_t wanted =
          indices_[static_cast<std::size_t>(buffer.first + place)];
      const std::int64_t replacements =
          std::min(options_.max_broken, source_->size() - 1);
      std::int64_t broken = 0;
      while (!stopped_.load()) {
        broken +=
            broken_.known_from(wanted + broken, replacements + 1 - broken);
        if (broken > replacements) break;
        const std::int64_t index = (wanted + broken) % source_->size();
        const std::exception_ptr error = try_read(buffer, place, index);
        if (error == nullptr) break;
        if (!BrokenSamples::is_broken(error)) return Failure{place, error};
        broken_.find(index, error);
      }
      if (broken == 0) return std::nullopt;
      const MutexLock lock(mutex_);
      buffer.replacements.push_back({place, {wanted, broken}});
      if (broken <= replacements) return std::nullopt;
      return Failure{place, broken_.error_of(wanted)};
    } catch (...) {
      return Failure{place, std::current_exception()};
    }
  }

  std::exception_ptr try_read(Buffer& buffer, std::int64_t place,
                              std::int64_t index) {
    try {
      read(buffer, place, index);
      return nullptr;
    } catch (...) {
      return std::current_exception();
    }
  }

  // Reads sample `index` of the source into place `place` of a batch.
  void read(Buffer& buffer, std::int64_t place, std::int64_t index) {
    const auto i = static_cast<std::size_t>(place);
    const std::size_t elements = image_elements();
    const auto image_in = [&](auto& images) {
      return std::span(images).subspan(i * elements, elements);
    };
    buffer.labels[i] =
        options_.elements == ImageElements::kPixels
            ? source_->read_pixels(index, options_.epoch,
                                   image_in(buffer.pixels))
            : source_->read(index, options_.epoch, image_in(buffer.images));
  }

  // Of several errors in a batch, the consumer gets that of the first sample,
  // whatever the number of workers.
  void finish(const Claim& claim, const std::optional<Failure>& failure) {
    const MutexLock lock(mutex_);
    Buffer& buffer = *claim.buffer;
    if (failure && (!buffer.failure || failure->place < buffer.failure->place))
      buffer.failure = failure;
    buffer.finished += claim.count;
    if (buffer.finished == buffer.count) {
      if (buffer.failure) failed_ = true;
      changed_.notify_all();
    }
  }

  // Counts the broken samples of a batch. Returns an error if one of its
  // samples was not read or the pass has more broken samples than permitted.
  // What a worker read after a failure depends on the number of workers, so it
  // does not count.
  std::exception_ptr error_of(Buffer& buffer) {
    std::ranges::sort(buffer.replacements, {}, &Replacement::place);
    for (const auto& [place, broken] : buffer.replacements) {
      if (buffer.failure && place > buffer.failure->place) break;
      if (auto error = broken_.count(broken)) return error;
    }
    return buffer.failure ? buffer.failure->error : nullptr;
  }

  std::size_t image_elements() const {
    return static_cast<std::size_t>(shape_[0] * shape_[1] * shape_[2]);
  }

  const OwnProcess process_;
  // Only the workers read the source, and the loader joins them.
  const SampleSource* source_;
  const std::vector<std::int64_t> indices_;
  const LoaderOptions options_;
  const ImageShape shape_;
  BrokenSamples broken_;

  std::atomic<bool> stopped_{false};
  Mutex mutex_;
  std::condition_variable_any changed_;
  // The batches that lie ready or are being filled, in order.
  std::deque<std::unique_ptr<Buffer>> open_ LOCKSTEP_GUARDED_BY(mutex_);
  std::vector<std::unique_ptr<Buffer>> free_ LOCKSTEP_GUARDED_BY(mutex_);
  std::int64_t opened_ LOCKSTEP_GUARDED_BY(mutex_) = 0;
  std::int64_t taken_ LOCKSTEP_GUARDED_BY(mutex_) = 0;
  bool failed_ LOCKSTEP_GUARDED_BY(mutex_) = false;  // no batch is opened
  std::exception_ptr no_memory_ LOCKSTEP_GUARDED_BY(mutex_);  // for a batch
  std::exception_ptr error_ LOCKSTEP_GUARDED_BY(mutex_);  // that next() threw
  std::chrono::nanoseconds waited_{};  // only the consumer uses it
};

// The workers of a pass, from here to the destructor.
class PassWorkers {
 public:
  PassWorkers(std::shared_ptr<Pass> pass, std::int64_t count)
      : pass_(std::move(pass)) {
    try {
      while (std::ssize(threads_) < count) start_one(count);
    } catch (...) {
      stop();
      throw;
    }
  }
  ~PassWorkers() {
    if (process_.is_current())
      stop();
    else
      for (std::thread& thread : threads_) thread.detach();
  }
  PassWorkers(const PassWorkers&) = delete;
  PassWorkers& operator=(const PassWorkers&) = delete;

  Pass& pass() const { return *pass_; }

 private:
  void start_one(std::int64_t count) try {
    threads_.emplace_back([shared = pass_] { shared->work(); });
  } catch (const std::system_error& error) {
    throw SystemError(
        fmt::format("cannot start worker {} of the {} that read samples "
                    "(fewer workers need fewer threads)",
                    threads_.size() + 1, count),
        error.code().value());
  }
  void stop() {
    pass_->stop();
    for (std::thread& thread : threads_) thread.join();
  }

  const OwnProcess process_;
  std::shared_ptr<Pass> pass_;
  std::vector<std::thread> threads_;
};

}  // namespace loader_internal

namespace {

constexpr std::int64_t kMostWorkers = 1024;

void check(const SampleSource& source, std::span<const std::int64_t> indices,
           const LoaderOptions& options) {
  if (options.batch_size < 1)
    throw InvalidArgument(fmt::format(
        "cannot load batches of {} samples: the batch size must be at least 1",
        options.batch_size));
  if (options.prefetch < 1)
    throw InvalidArgument(fmt::format(
        "cannot prefetch {} batches: it must be at least 1", options.prefetch));
  if (options.workers < 1 || options.workers > kMostWorkers)
    throw InvalidArgument(
        fmt::format("cannot read with {} workers: it must be 1 to {}",
                    options.workers, kMostWorkers));
  if (options.max_broken < 0)
    throw InvalidArgument(
        fmt::format("cannot replace {} broken samples: the number must not be "
                    "negative",
                    options.max_broken));
  constexpr std::int64_t kMostOfAnImage = std::int64_t{1} << 40;
  std::int64_t numbers = 1;
  for (const std::int64_t side : source.shape()) {
    if (side < 1 || side > kMostOfAnImage / numbers)
      throw InvalidArgument(fmt::format(
          "cannot load images of the shape {}: each side must be at least 1, "
          "and their product at most {}",
          fmt::join(source.shape(), " x "), kMostOfAnImage));
    numbers *= side;
  }
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
  workers_ = std::make_unique<loader_internal::PassWorkers>(
      std::make_shared<loader_internal::Pass>(source, std::move(indices),
                                              options),
      options.workers);
}

Loader::~Loader() = default;

std::optional<Batch> Loader::next(Deadline deadline) {
  return workers_->pass().next(deadline);
}

std::int64_t Loader::batch_count() const {
  return workers_->pass().batch_count();
}

std::span<const BrokenSample> Loader::broken() const {
  return workers_->pass().broken();
}

std::chrono::nanoseconds Loader::waited() const {
  return workers_->pass().waited();
}

std::int64_t SampleSource::read_pixels(std::int64_t, std::uint64_t,
                                       std::span<std::uint8_t>) const {
  throw InvalidArgument(
      "cannot read pixels: this source has no pixels; use read()");
}

}  // namespace lockstep

#include "src/data/loader_pass.h"

#include <fmt/format.h>

#include <algorithm>
#include <new>
#include <system_error>
#include <utility>

#include "lockstep/base/error.h"

namespace lockstep::loader_internal {
namespace {

constexpr std::int64_t kMostWorkers = 1024;

void check(const PassOptions& options, std::span<const std::int64_t> indices,
           std::int64_t size) {
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
  for (std::size_t i = 0; i < indices.size(); ++i)
    if (indices[i] < 0 || indices[i] >= size)
      throw InvalidArgument(
          fmt::format("cannot load sample {} (number {} of the pass): the data "
                      "set has {} samples, counted from 0",
                      indices[i], i, size));
}

}  // namespace

Pass::Pass(std::unique_ptr<BatchFiller> filler,
           std::vector<std::int64_t> indices, const PassOptions& options)
    : filler_(std::move(filler)),
      indices_(std::move(indices)),
      options_(options),
      broken_(filler_->size(), options.max_broken) {}

std::int64_t Pass::batch_count() const {
  const auto samples = std::ssize(indices_);
  const std::int64_t full = samples / options_.batch_size;
  const bool rest = samples % options_.batch_size != 0;
  return rest && !options_.drop_last ? full + 1 : full;
}

void Pass::work() noexcept {
  while (const auto claim = next_claim()) {
    std::optional<Failure> failure;
    for (std::int64_t i = 0; i < claim->count && !failure && !stopped_.load();
         ++i)
      failure = read_or_replace(*claim->buffer, claim->begin + i);
    finish(*claim, failure);
  }
}

void Pass::stop() {
  const MutexLock lock(mutex_);
  stopped_.store(true);
  free_.clear();
  changed_.notify_all();
}

std::unique_ptr<Buffer> Pass::next(Deadline deadline) {
  if (!process_.is_current())
    throw InvalidArgument(
        "cannot take a batch of a Loader in a forked process: the workers are "
        "in its parent\n"
        "  next:    make a Loader after the fork");
  MutexLock lock(mutex_);
  if (error_ != nullptr) std::rethrow_exception(error_);
  if (taken_ == batch_count()) return nullptr;
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
  return buffer;
}

void Pass::recycle(std::unique_ptr<Buffer> buffer) {
  // In a forked process a worker of the parent may hold the mutex for ever.
  if (!process_.is_current()) return;
  const MutexLock lock(mutex_);
  if (stopped_.load()) return;
  try {
    free_.push_back(std::move(buffer));
  } catch (const std::bad_alloc&) {
    // The next batch allocates its own.
  }
}

// Waiting for time_point::max() overflows in some libraries.
void Pass::wait(MutexLock& lock, Deadline deadline) {
  if (deadline.is_never())
    changed_.wait(lock);
  else
    changed_.wait_until(lock, deadline.when());
}

bool Pass::is_ready() const {
  return !open_.empty() && open_.front()->finished == open_.front()->count;
}

void Pass::wait_for_batch(MutexLock& lock, Deadline deadline) {
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
std::optional<Claim> Pass::next_claim() noexcept {
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
Claim Pass::claim_of(Buffer& buffer) {
  constexpr std::int64_t kPartsPerWorker = 4;
  const std::int64_t parts =
      options_.workers == 1 ? 1 : options_.workers * kPartsPerWorker;
  const std::int64_t size = (buffer.count + parts - 1) / parts;
  const Claim claim{&buffer, buffer.claimed,
                    std::min(size, buffer.count - buffer.claimed)};
  buffer.claimed += claim.count;
  return claim;
}

void Pass::try_open() noexcept {
  try {
    open_next();
  } catch (...) {
    no_memory_ = std::current_exception();
    failed_ = true;
    changed_.notify_all();
  }
}

// Begins the next batch. It allocates a new buffer when the consumer holds all
// others, so holding batches never blocks the pass.
void Pass::open_next() {
  std::unique_ptr<Buffer> buffer;
  if (free_.empty()) {
    buffer = std::make_unique<Buffer>();
    buffer->contents = filler_->make();
  } else {
    buffer = std::move(free_.back());
    free_.pop_back();
  }
  const std::int64_t first = opened_ * options_.batch_size;
  const std::int64_t count =
      std::min(options_.batch_size, std::ssize(indices_) - first);
  filler_->open(*buffer->contents, count);
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
std::optional<Failure> Pass::read_or_replace(Buffer& buffer,
                                             std::int64_t place) noexcept {
  try {
    const std::int64_t size = filler_->size();
    const std::int64_t wanted =
        indices_[static_cast<std::size_t>(buffer.first + place)];
    const std::int64_t replacements = std::min(options_.max_broken, size - 1);
    std::int64_t broken = 0;
    while (!stopped_.load()) {
      broken += broken_.known_from(wanted + broken, replacements + 1 - broken);
      if (broken > replacements) break;
      const std::int64_t index = (wanted + broken) % size;
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

std::exception_ptr Pass::try_read(Buffer& buffer, std::int64_t place,
                                  std::int64_t index) {
  try {
    filler_->read(*buffer.contents, place, index);
    return nullptr;
  } catch (...) {
    return std::current_exception();
  }
}

// Of several errors in a batch, the consumer gets that of the first sample,
// whatever the number of workers.
void Pass::finish(const Claim& claim, std::optional<Failure> failure) {
  Buffer& buffer = *claim.buffer;
  MutexLock lock(mutex_);
  if (failure && (!buffer.failure || failure->place < buffer.failure->place))
    buffer.failure = std::move(failure);
  // While this part is not finished, the batch is of the workers: without other
  // parts, of this one.
  if (buffer.finished + claim.count == buffer.count && !buffer.failure &&
      !stopped_.load()) {
    lock.unlock();
    failure = complete(buffer);
    lock.lock();
    buffer.failure = std::move(failure);
  }
  buffer.finished += claim.count;
  if (buffer.finished == buffer.count) {
    if (buffer.failure) failed_ = true;
    changed_.notify_all();
  }
}

std::optional<Failure> Pass::complete(Buffer& buffer) {
  try {
    filler_->complete(*buffer.contents);
    return std::nullopt;
  } catch (...) {
    // After what reading found: see error_of().
    return Failure{buffer.count, std::current_exception()};
  }
}

// Counts the broken samples of a batch. Returns an error if one of its samples
// was not read or the pass has more broken samples than permitted. What a
// worker read after a failure depends on the number of workers, so it does not
// count.
std::exception_ptr Pass::error_of(Buffer& buffer) {
  std::ranges::sort(buffer.replacements, {}, &Replacement::place);
  for (const auto& [place, broken] : buffer.replacements) {
    if (buffer.failure && place > buffer.failure->place) break;
    if (auto error = broken_.count(broken)) return error;
  }
  return buffer.failure ? buffer.failure->error : nullptr;
}

PassWorkers::PassWorkers(std::unique_ptr<BatchFiller> filler,
                         std::vector<std::int64_t> indices,
                         const PassOptions& options) {
  check(options, indices, filler->size());
  pass_ =
      std::make_shared<Pass>(std::move(filler), std::move(indices), options);
  try {
    while (std::ssize(threads_) < options.workers) start_one(options.workers);
  } catch (...) {
    stop();
    throw;
  }
}

PassWorkers::~PassWorkers() {
  if (process_.is_current())
    stop();
  else
    for (std::thread& thread : threads_) thread.detach();
}

void PassWorkers::start_one(std::int64_t count) try {
  threads_.emplace_back([shared = pass_] { shared->work(); });
} catch (const std::system_error& error) {
  throw SystemError(
      fmt::format("cannot start worker {} of the {} that read samples (fewer "
                  "workers need fewer threads)",
                  threads_.size() + 1, count),
      error.code().value());
}

void PassWorkers::stop() {
  pass_->stop();
  for (std::thread& thread : threads_) thread.join();
}

}  // namespace lockstep::loader_internal

// One pass over a source's samples by threads that prepare batches ahead: what
// Loader and TensorLoader share. It knows nothing of the contents of a batch,
// which a BatchFiller makes, fills and completes.
//
// Workers read the samples of a batch together, each into its place, so that
// batches do not depend on their number.
//
// Threads: one consumer calls next(); recycle() may be called by any thread.
// Errors:  see lockstep/data/loader.h.
#pragma once

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <exception>
#include <memory>
#include <optional>
#include <span>
#include <thread>
#include <vector>

#include "lockstep/base/deadline.h"
#include "lockstep/data/loader.h"
#include "src/base/mutex.h"
#include "src/base/own_process.h"
#include "src/data/broken_samples.h"

namespace lockstep::loader_internal {

// The memory of a batch's samples.
struct BatchContents {
  virtual ~BatchContents() = default;
};

// Fills batches with the samples of one source. The workers call it, several of
// them at a time for one batch.
class BatchFiller {
 public:
  virtual ~BatchFiller() = default;

  // The number of samples of the source.
  virtual std::int64_t size() const = 0;
  virtual std::unique_ptr<BatchContents> make() const = 0;
  // Makes room for `count` samples, in contents that may have been used.
  virtual void open(BatchContents& contents, std::int64_t count) const = 0;
  // Reads sample `index` of the source into place `place` of the batch.
  virtual void read(BatchContents& contents, std::int64_t place,
                    std::int64_t index) const = 0;
  // Called once all samples of a batch have been read, by one worker.
  virtual void complete(BatchContents& /*contents*/) const {}
};

struct PassOptions {
  std::int64_t batch_size = 0;
  bool drop_last = false;
  std::int64_t prefetch = 0;
  std::int64_t workers = 0;
  std::int64_t max_broken = 0;
};

// Of LoaderOptions or TensorLoaderOptions.
template <class Options>
PassOptions pass_options(const Options& options) {
  return {.batch_size = options.batch_size,
          .drop_last = options.drop_last,
          .prefetch = options.prefetch,
          .workers = options.workers,
          .max_broken = options.max_broken};
}

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
  std::unique_ptr<BatchContents> contents;
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
  Pass(std::unique_ptr<BatchFiller> filler, std::vector<std::int64_t> indices,
       const PassOptions& options);

  std::int64_t batch_count() const;
  const BatchFiller& filler() const { return *filler_; }
  std::chrono::nanoseconds waited() const { return waited_; }
  std::span<const BrokenSample> broken() const { return broken_.all(); }

  // A worker's loop: reads samples until all are read or stop() is called.
  void work() noexcept;
  void stop();

  // The next batch, or null at the end of the pass. The caller gives the memory
  // back by recycle().
  std::unique_ptr<Buffer> next(Deadline deadline);
  void recycle(std::unique_ptr<Buffer> buffer);

 private:
  void wait(MutexLock& lock, Deadline deadline);
  bool is_ready() const LOCKSTEP_REQUIRES(mutex_);
  void wait_for_batch(MutexLock& lock, Deadline deadline)
      LOCKSTEP_REQUIRES(mutex_);
  std::optional<Claim> next_claim() noexcept;
  Claim claim_of(Buffer& buffer) LOCKSTEP_REQUIRES(mutex_);
  void try_open() noexcept LOCKSTEP_REQUIRES(mutex_);
  void open_next() LOCKSTEP_REQUIRES(mutex_);
  std::optional<Failure> read_or_replace(Buffer& buffer,
                                         std::int64_t place) noexcept;
  std::exception_ptr try_read(Buffer& buffer, std::int64_t place,
                              std::int64_t index);
  void finish(const Claim& claim, std::optional<Failure> failure);
  std::optional<Failure> complete(Buffer& buffer);
  std::exception_ptr error_of(Buffer& buffer);

  const OwnProcess process_;
  // Only the workers read the source, and the loader joins them.
  const std::unique_ptr<BatchFiller> filler_;
  const std::vector<std::int64_t> indices_;
  const PassOptions options_;
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

// The workers of a pass, from here to the destructor, which stops each after
// its current sample.
class PassWorkers {
 public:
  // Starts the workers; SystemError if the host cannot start all of them.
  // InvalidArgument for options out of range, and for an index that the source
  // does not have.
  PassWorkers(std::unique_ptr<BatchFiller> filler,
              std::vector<std::int64_t> indices, const PassOptions& options);
  ~PassWorkers();
  PassWorkers(const PassWorkers&) = delete;
  PassWorkers& operator=(const PassWorkers&) = delete;

  Pass& pass() const { return *pass_; }

 private:
  void start_one(std::int64_t count);
  void stop();

  const OwnProcess process_;
  std::shared_ptr<Pass> pass_;
  std::vector<std::thread> threads_;
};

}  // namespace lockstep::loader_internal

// The samples of a pass that could not be read, and were replaced.
//
// Workers find them, in any order; the consumer counts them batch by batch, in
// the order of the samples, so that what is permitted does not depend on the
// number of workers. A broken sample is read once.
//
// Threads: any; count() and all() belong to the consumer's.
#pragma once

#include <atomic>
#include <cstdint>
#include <exception>
#include <map>
#include <span>
#include <unordered_map>
#include <unordered_set>
#include <vector>

#include "lockstep/data/loader.h"
#include "src/base/mutex.h"

namespace lockstep {

// Samples of a source that follow each other, the first after the last.
struct SampleRange {
  std::int64_t first = 0;
  std::int64_t count = 0;
};

class BrokenSamples {
 public:
  // Of a source of `size` samples, `most` of which may be broken.
  BrokenSamples(std::int64_t size, std::int64_t most)
      : size_(size), most_(most) {}

  // Whether a sample whose reading threw `error` counts as broken: a damaged
  // file or one that the system refuses to read, but not a bug, and not a lack
  // of memory or descriptors.
  static bool is_broken(const std::exception_ptr& error);

  // How many of the samples from `first` on, at most `most`, are known to be
  // broken before one that is not.
  std::int64_t known_from(std::int64_t first, std::int64_t most);
  void find(std::int64_t index, const std::exception_ptr& error);
  // Of a sample that was found.
  std::exception_ptr error_of(std::int64_t index);

  // Counts samples that were found, up to one that can be read. Returns the
  // error of the first that exceeds the number, if one does.
  std::exception_ptr count(const SampleRange& range);
  std::span<const BrokenSample> all() const { return counted_; }

 private:
  std::int64_t wrapped(std::int64_t index) const {
    return index < size_ ? index : index - size_;
  }

  const std::int64_t size_;
  const std::int64_t most_;
  // Spares the lock for each sample of a source without broken ones.
  std::atomic<bool> any_{false};
  Mutex mutex_;
  // How many samples from `first` on to the source's end are known in a row.
  std::int64_t run_from(std::int64_t first) const LOCKSTEP_REQUIRES(mutex_);

  std::unordered_map<std::int64_t, std::exception_ptr> errors_
      LOCKSTEP_GUARDED_BY(mutex_);
  // The same samples in rows, from the first to the one after the last: a class
  // whose folder cannot be read must not be walked for each of its samples.
  std::map<std::int64_t, std::int64_t> runs_ LOCKSTEP_GUARDED_BY(mutex_);
  // Only the consumer uses these.
  std::unordered_set<std::int64_t> indices_;
  std::vector<BrokenSample> counted_;
};

}  // namespace lockstep

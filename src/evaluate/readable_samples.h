// A source of samples for an evaluation, some of which may be broken.
//
// A training run replaces a broken sample; an evaluation must count each once,
// so it leaves broken ones out. Here such a sample reads as zeros with the
// label kBrokenLabel, which keeps batches complete; the reader of the outputs
// drops its row with without_broken().
//
// Threads: as the source; broken() when no thread reads.
// Errors:  those of the source for what is no broken sample (see
//          src/data/broken_samples.h), and where more are broken than may be.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <vector>

#include "lockstep/data/loader.h"
#include "src/base/mutex.h"

namespace lockstep {

inline constexpr std::int64_t kBrokenLabel = -2;

class ReadableSamples final : public SampleSource {
 public:
  // `source` must outlive the object. Of its samples, `most_broken` may be
  // broken.
  ReadableSamples(const SampleSource& source, std::int64_t most_broken)
      : source_(source), most_(most_broken) {}

  std::int64_t size() const override { return source_.size(); }
  ImageShape shape() const override { return source_.shape(); }
  std::span<const float> levels() const override { return source_.levels(); }
  std::int64_t read(std::int64_t index, std::uint64_t epoch,
                    std::span<float> image) const override;
  std::int64_t read_pixels(std::int64_t index, std::uint64_t epoch,
                           std::span<std::uint8_t> image) const override;

  // The broken samples that were read, by index.
  std::vector<BrokenSample> broken() const;

 private:
  template <class Element, class Read>
  std::int64_t try_read(std::int64_t index, std::span<Element> image,
                        const Read& read) const;
  void note(std::int64_t index, const std::exception_ptr& error) const;

  const SampleSource& source_;
  const std::int64_t most_;
  mutable Mutex mutex_;
  mutable std::map<std::int64_t, std::string> messages_
      LOCKSTEP_GUARDED_BY(mutex_);
};

// A batch's outputs without the rows of broken samples.
struct ReadableRows {
  at::Tensor logits;
  at::Tensor labels;
};
ReadableRows without_broken(const at::Tensor& logits, const at::Tensor& labels);

}  // namespace lockstep

// How many bytes a compressing hook saved, and how much precision it lost.
//
// Threads: single-threaded, like hooks.
// Errors:  none.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>

#include "lockstep/torch/reducer/comm_hook.h"

namespace lockstep {

struct CompressionReport {
  // Passes in all, and how many of them were compressed.
  std::int64_t passes = 0;
  std::int64_t compressed_passes = 0;
  // Bytes of this rank's gradients, and of what the hook sent instead or passed
  // to its inner hook, over all passes.
  std::int64_t bytes_before = 0;
  std::int64_t bytes_after = 0;
  // The norm of what was not sent, relative to the gradients' norm, in the last
  // measured pass: 0 is nothing lost, 1 is all. Of this rank alone.
  double relative_error = 0;

  // bytes_before / bytes_after; 1 before the first pass.
  double ratio() const {
    return bytes_after == 0 ? 1
                            : static_cast<double>(bytes_before) /
                                  static_cast<double>(bytes_after);
  }
};

class CompressingHook : public CommHook {
 public:
  // The error is measured in compressed passes 1, 2, 4, 8 and so on, and in
  // every multiple of this number. A measurement costs about two passes over
  // the gradients.
  static constexpr std::int64_t kMeasureEvery = 100;

  // Waits for the device if the gradients are on a GPU.
  CompressionReport report() const;

 protected:
  // A subclass calls one of these once per bucket, when the bucket is done, in
  // the order of buckets.
  void sent(const GradBucket& bucket, std::int64_t bytes);
  void sent_uncompressed(const GradBucket& bucket);

  // Whether this pass measures the error.
  bool measures() const;
  // Takes a bucket's sums of squares, float64, on any device: of the gradients
  // and of what was not sent. In a captured pass they change with each replay.
  void measured(const at::Tensor& squares, const at::Tensor& squares_lost);

 private:
  CompressionReport report_;  // except the error
  std::int64_t pass_measured_ = -1;
  at::Tensor squares_, squares_lost_;  // of that pass, so far
};

}  // namespace lockstep

// What a hook that compresses gradients has saved, and what it has lost.
//
// Threads: single-threaded, as hooks are.
// Errors:  none.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>

#include "lockstep/torch/comm_hook.h"

namespace lockstep {

struct CompressionReport {
  // Passes in all, and how many of them were compressed.
  std::int64_t passes = 0;
  std::int64_t compressed_passes = 0;
  // Of this rank's gradients, and of what the hook sent in their place, or gave
  // to the hook inside it; in all passes.
  std::int64_t bytes_before = 0;
  std::int64_t bytes_after = 0;
  // How long what was not sent is beside the gradients, in the last pass of
  // which that was measured: 0 is nothing, 1 is all. Of this rank alone.
  double relative_error = 0;

  // How many times less is sent; 1 before the first pass.
  double ratio() const {
    return bytes_after == 0 ? 1
                            : static_cast<double>(bytes_before) /
                                  static_cast<double>(bytes_after);
  }
};

class CompressingHook : public CommHook {
 public:
  // Compressed passes of which the error is measured: the 1st, 2nd, 4th, 8th
  // and so on, and each of this number. It costs about two passes over the
  // gradients.
  static constexpr std::int64_t kMeasureEvery = 100;

  // Waits for the device, if the gradients are on one.
  CompressionReport report() const;

 protected:
  // To be called once for each bucket, when it is done, in the order of
  // buckets.
  void sent(const GradBucket& bucket, std::int64_t bytes);
  void sent_uncompressed(const GradBucket& bucket);

  // Whether the error of the present pass is to be measured.
  bool measures() const;
  // Sums of squares of a bucket, float64, on any device: of the gradients and
  // of what was not sent. In a captured pass they change with each replay.
  void measured(const at::Tensor& squares, const at::Tensor& squares_lost);

 private:
  CompressionReport report_;  // but for the error
  std::int64_t pass_measured_ = -1;
  at::Tensor squares_, squares_lost_;  // of that pass, so far
};

}  // namespace lockstep

// What passes came to, while the device may still compute them.
//
// Reading numbers off a device at once makes the host wait for all that it has
// been given, and then the device for the host. These are on their way from the
// pass on, and read when they are wanted.
//
// Threads: belongs to one thread at a time.
// Errors:  none of its own.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <vector>

#include "lockstep/torch/device_copies.h"
#include "lockstep/train/metrics.h"

namespace lockstep {

class PendingMetrics {
 public:
  PendingMetrics() = default;
  // Of one pass, from the mean of its losses and its logits.
  PendingMetrics(const at::Tensor& mean_loss, const at::Tensor& logits,
                 const at::Tensor& labels);

  PendingMetrics& operator+=(PendingMetrics other);

  // The sum, once the device is that far.
  Metrics read() const;

 private:
  struct Pass {
    CopyToHost numbers;  // mean loss, correct
    std::int64_t samples;
  };
  std::vector<Pass> passes_;
};

}  // namespace lockstep

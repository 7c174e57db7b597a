// Metrics of passes that the device may still be computing.
//
// Reading numbers from a device at once makes the host wait for all of the
// device's work, and then the device for the host. These numbers are copied
// asynchronously after the pass, and read when needed.
//
// Threads: an object belongs to one thread at a time.
// Errors:  none of its own.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <vector>

#include "src/evaluate/metrics.h"
#include "src/torch/device/device_copies.h"

namespace lockstep {

class PendingMetrics {
 public:
  PendingMetrics() = default;
  // For one pass, from the mean of its losses and its logits.
  PendingMetrics(const at::Tensor& mean_loss, const at::Tensor& logits,
                 const at::Tensor& labels);

  PendingMetrics& operator+=(PendingMetrics other);

  // The sum; waits until the device has computed it.
  Metrics read() const;

 private:
  struct Pass {
    CopyToHost numbers;  // mean loss, correct
    std::int64_t samples;
  };
  std::vector<Pass> passes_;
};

}  // namespace lockstep

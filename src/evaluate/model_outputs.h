// The outputs of a model for the batches of a loader, one batch ahead of the
// reader on a device.
//
// Threads: the model and the loader belong to the calling thread meanwhile.
// Errors:  those of the model and the loader.
#pragma once

#include <ATen/core/Tensor.h>

#include <chrono>
#include <functional>

#include "lockstep/data/loader.h"
#include "lockstep/evaluate/evaluation.h"
#include "lockstep/torch/device_batches.h"

namespace lockstep {

// Passes the logits and labels of each batch of `loader` to `take`, both on the
// host; `batches` copies images to the model's device, which gets the next
// batch while the host waits for an output. Waits at most `timeout` for a
// batch.
void for_each_output(Loader& loader, DeviceBatches& batches,
                     const Forward& forward, std::chrono::nanoseconds timeout,
                     const std::function<void(const at::Tensor& logits,
                                              const at::Tensor& labels)>& take);

}  // namespace lockstep

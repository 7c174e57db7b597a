// The type in which a model computes; weights, gradients and optimizer state
// stay float32.
//
// Threads: MixedPrecision belongs to the thread that made it, and does not
//          affect other threads.
#pragma once

#include <c10/core/DeviceType.h>
#include <c10/core/ScalarType.h>

#include "apps/options/training_names.h"

namespace lockstep {

// From now on float32 matrix products and convolutions of this process on GPUs
// may round their factors to TF32's 10 bits; LibTorch's default allows it for
// convolutions only.
void allow_tf32();

// A scope in which forward passes and losses on `device` compute in
// `precision`. Call backward() outside: it uses the types of the forward pass.
// The destructor restores autocast.
class MixedPrecision {
 public:
  explicit MixedPrecision(Precision precision,
                          c10::DeviceType device = c10::kCPU);
  ~MixedPrecision();

  MixedPrecision(const MixedPrecision&) = delete;
  MixedPrecision& operator=(const MixedPrecision&) = delete;

 private:
  bool active_;
  c10::DeviceType device_;
  bool was_enabled_ = false;
  c10::ScalarType previous_type_{};
};

}  // namespace lockstep

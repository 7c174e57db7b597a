// The type in which a model computes; weights, gradients and optimizer state
// stay float32.
//
// Threads: MixedPrecision belongs to the thread that made it, and does not
//          affect other threads.
// Errors:  InvalidArgument for an unknown name.
#pragma once

#include <c10/core/DeviceType.h>
#include <c10/core/ScalarType.h>

#include <span>
#include <string_view>

namespace lockstep {

enum class Precision {
  kFloat32,
  // Convolutions and matrix products in bfloat16, losses and other operations
  // that need more digits in float32: LibTorch's autocast. bfloat16 has the
  // range of float32, so gradients need no scaling.
  kBfloat16,
  // The same in float16: more digits, but nothing above 65,504 and little below
  // 1e-5, so losses must be scaled: see torch/optim/gradient_scaler.h.
  kFloat16,
};

// The names that parse_precision() takes: "float32", "bfloat16", "float16".
std::span<const std::string_view> known_precisions();

Precision parse_precision(std::string_view name);

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

// Sends gradients with half their bits: rounded to 16 bits, averaged, and
// widened again.
//
//     model.register_comm_hook(lockstep::fp16_compress_hook());
//
// The average itself is computed in float32 and rounded once. A rank's rounding
// errors are lost: float16 keeps 11 bits, bfloat16 keeps 8 with float32's
// range. A gradient beyond 65504 becomes infinite in float16.
//
// Threads: like CommHook.
// Errors:  InvalidArgument for a null inner hook, and for a type that is
//          neither float16 nor bfloat16.
// Source:  torch.distributed.algorithms.ddp_comm_hooks.default_hooks.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/ScalarType.h>

#include <cstdint>
#include <memory>
#include <string_view>

#include "lockstep/torch/comm_hook.h"

namespace lockstep {

// How many bytes a compressing hook saved, and how much precision it lost.
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

// A hook that compresses, this one or PowerSgdHook.
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

// The reduction that runs without a hook, as a hook: for hooks that wrap
// others.
std::shared_ptr<CommHook> allreduce_hook();

// Passes 16-bit buckets to `inner`, and widens its results.
class CompressHook final : public CompressingHook {
 public:
  explicit CompressHook(at::ScalarType type,
                        std::shared_ptr<CommHook> inner = allreduce_hook());

  HookProgress start(const GradBucket& bucket) override;
  void abort(std::string_view reason) noexcept override {
    inner_->abort(reason);
  }
  bool reduces_in_part(const at::Tensor& parameter) const override {
    return inner_->reduces_in_part(parameter);
  }
  bool replicas_may_differ() const override {
    return inner_->replicas_may_differ();
  }

 private:
  at::ScalarType type_;
  std::shared_ptr<CommHook> inner_;
};

std::shared_ptr<CompressHook> fp16_compress_hook();
std::shared_ptr<CompressHook> bf16_compress_hook();
std::shared_ptr<CompressHook> fp16_compress_wrapper(
    std::shared_ptr<CommHook> inner);
std::shared_ptr<CompressHook> bf16_compress_wrapper(
    std::shared_ptr<CommHook> inner);

}  // namespace lockstep

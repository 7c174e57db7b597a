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

#include <c10/core/ScalarType.h>

#include <memory>

#include "lockstep/torch/hooks/compression.h"
#include "lockstep/torch/reducer/comm_hook.h"

namespace lockstep {

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

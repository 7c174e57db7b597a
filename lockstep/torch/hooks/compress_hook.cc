#include "lockstep/torch/hooks/compress_hook.h"

#include <c10/util/StringUtil.h>

#include <utility>

#include "lockstep/base/error.h"
#include "lockstep/torch/optim/clip_gradients.h"

namespace lockstep {
namespace {

class AllReduceHook final : public CommHook {
 public:
  HookProgress start(const GradBucket& bucket) override {
    return {all_reduce_average(bucket)};
  }
};

}  // namespace

std::shared_ptr<CommHook> allreduce_hook() {
  return std::make_shared<AllReduceHook>();
}

CompressHook::CompressHook(at::ScalarType type, std::shared_ptr<CommHook> inner)
    : type_(type), inner_(std::move(inner)) {
  if (!inner_) throw InvalidArgument("CompressHook: the inner hook is null");
  if (type != at::kHalf && type != at::kBFloat16)
    throw InvalidArgument(c10::str(
        "CompressHook: expected the type Half or BFloat16, got ", type));
}

HookProgress CompressHook::start(const GradBucket& bucket) {
  const at::Tensor compressed = bucket.buffer.to(type_);
  if (measures())
    measured(sum_of_squares_there(bucket.buffer),
             sum_of_squares_there(bucket.buffer - compressed));
  sent(bucket, static_cast<std::int64_t>(compressed.nbytes()));
  return followed_by(
      inner_->start(with_buffer(bucket, compressed)),
      [whole = bucket.buffer, compressed] { whole.copy_(compressed); });
}

std::shared_ptr<CompressHook> fp16_compress_hook() {
  return std::make_shared<CompressHook>(at::kHalf);
}

std::shared_ptr<CompressHook> bf16_compress_hook() {
  return std::make_shared<CompressHook>(at::kBFloat16);
}

std::shared_ptr<CompressHook> fp16_compress_wrapper(
    std::shared_ptr<CommHook> inner) {
  return std::make_shared<CompressHook>(at::kHalf, std::move(inner));
}

std::shared_ptr<CompressHook> bf16_compress_wrapper(
    std::shared_ptr<CommHook> inner) {
  return std::make_shared<CompressHook>(at::kBFloat16, std::move(inner));
}

}  // namespace lockstep

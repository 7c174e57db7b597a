#include <ATen/TensorOperators.h>
#include <c10/util/StringUtil.h>

#include <bit>
#include <cmath>
#include <utility>

#include "lockstep/base/error.h"
#include "lockstep/torch/comm_hooks.h"
#include "src/torch/optim/gradient_norm.h"

namespace lockstep {
namespace {

class AllReduceHook final : public CommHook {
 public:
  HookProgress start(const GradBucket& bucket) override {
    return {all_reduce_average(bucket)};
  }
};

}  // namespace

void CompressingHook::sent(const GradBucket& bucket, std::int64_t bytes) {
  report_.bytes_before += static_cast<std::int64_t>(bucket.buffer.nbytes());
  report_.bytes_after += bytes;
  if (!bucket.is_last) return;
  ++report_.passes;
  ++report_.compressed_passes;
}

void CompressingHook::sent_uncompressed(const GradBucket& bucket) {
  const auto bytes = static_cast<std::int64_t>(bucket.buffer.nbytes());
  report_.bytes_before += bytes;
  report_.bytes_after += bytes;
  if (bucket.is_last) ++report_.passes;
}

bool CompressingHook::measures() const {
  const auto pass = static_cast<std::uint64_t>(report_.compressed_passes) + 1;
  return std::has_single_bit(pass) || pass % kMeasureEvery == 0;
}

void CompressingHook::measured(const at::Tensor& squares,
                               const at::Tensor& squares_lost) {
  const bool begins =
      std::exchange(pass_measured_, report_.passes) != report_.passes;
  squares_ = begins ? squares : squares_ + squares;
  squares_lost_ = begins ? squares_lost : squares_lost_ + squares_lost;
}

CompressionReport CompressingHook::report() const {
  CompressionReport report = report_;
  const double squares = squares_.defined() ? squares_.item<double>() : 0;
  if (squares != 0)
    report.relative_error = std::sqrt(squares_lost_.item<double>() / squares);
  return report;
}

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

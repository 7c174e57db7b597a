#include "lockstep/torch/hooks/compression.h"

#include <ATen/TensorOperators.h>

#include <bit>
#include <cmath>
#include <utility>

namespace lockstep {

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

}  // namespace lockstep

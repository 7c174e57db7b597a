#include "lockstep/torch/compression.h"

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

void CompressingHook::measured(double squares, double squares_lost) {
  if (std::exchange(pass_measured_, report_.passes) != report_.passes)
    squares_ = squares_lost_ = 0;
  squares_ += squares;
  squares_lost_ += squares_lost;
  report_.relative_error =
      squares_ == 0 ? 0 : std::sqrt(squares_lost_ / squares_);
}

}  // namespace lockstep

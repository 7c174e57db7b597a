#include "lockstep/data/sample_source.h"

#include "lockstep/base/error.h"

namespace lockstep {

std::int64_t SampleSource::read_pixels(std::int64_t, std::uint64_t,
                                       std::span<std::uint8_t>) const {
  throw InvalidArgument(
      "cannot read pixels: this source has no pixels; use read()");
}

}  // namespace lockstep

// Sizes in whole units: cache lines, pages, blocks.
//
// Errors:  none.
#pragma once

#include <cstddef>

namespace lockstep {

// The smallest multiple of `unit` that is at least `bytes`. The caller ensures
// that `unit` is not 0 and that the result does not overflow.
constexpr std::size_t round_up_to(std::size_t unit, std::size_t bytes) {
  return (bytes + unit - 1) / unit * unit;
}

}  // namespace lockstep

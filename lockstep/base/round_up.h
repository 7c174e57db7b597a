// Sizes in whole units: cache lines, pages, blocks.
//
// Threads: a function of its arguments.
// Errors:  none.
#pragma once

#include <cstddef>

namespace lockstep {

// The least multiple of `unit`, which is not 0, that is not below `bytes`. The
// caller sees to it that there is one.
constexpr std::size_t round_up_to(std::size_t unit, std::size_t bytes) {
  return (bytes + unit - 1) / unit * unit;
}

}  // namespace lockstep

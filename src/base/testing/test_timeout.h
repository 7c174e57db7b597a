// The deadline of waits in tests: long enough never to pass in a successful
// test, so it only keeps a failing one from hanging.
#pragma once

#include <chrono>

namespace lockstep {

inline constexpr std::chrono::minutes kTimeout{5};

}  // namespace lockstep

// What the ranks of a group on GPUs say to each other through their group of
// the CPU. It has no deadline: that of the operation for which it is said
// counts.
//
// Threads: as Backend.
// Errors:  in the Work.
#pragma once

#include <chrono>
#include <string_view>

#include "lockstep/comm/backend.h"

namespace lockstep {

inline constexpr auto kNoDeadline = std::chrono::nanoseconds::max();

// Of two ranks, of which one sends and the other receives.
struct Letter {
  bool sends = false;
  int peer = 0;
  int tag = 0;
  std::string_view place{};
};
Work start_letter(Backend& control, const Letter& letter, const Buffer& buffer);

// Returns when nothing touches the memory of `work` any more, once `control`
// has failed.
void settle(const Work& work) noexcept;

}  // namespace lockstep

// Calls by which the ranks of a group on GPUs communicate through their CPU
// group. They have no deadline of their own: that of the GPU operation applies.
//
// Threads: those of Backend.
// Errors:  surface in the Work.
#pragma once

#include <chrono>
#include <string_view>

#include "src/comm/operation/backend.h"

namespace lockstep {

inline constexpr auto kNoDeadline = std::chrono::nanoseconds::max();

// A message between two ranks: one sends, the other receives.
struct ControlMessage {
  bool sends = false;
  int peer = 0;
  int tag = 0;
  std::string_view label{};
};
Work start_control_message(Backend& control, const ControlMessage& message,
                           const Buffer& buffer);

// Call after `control` has failed. Returns when no thread touches the memory of
// `work` any more.
void settle(const Work& work) noexcept;

}  // namespace lockstep

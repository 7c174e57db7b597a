// What the errors of a group on GPUs say, and where they come from.
//
// Threads: pure functions, but for what the group of the CPU does.
#pragma once

#include <exception>
#include <string>

#include "lockstep/comm/backend.h"
#include "lockstep/comm/nccl/nccl_flight.h"

namespace lockstep {

// Who it is that says them.
struct GpuPlace {
  const GroupIdentity& identity;
  int gpu = 0;
};

// Of an operation whose deadline has passed.
std::string describe_timeout(const NcclFlight& flight, const GpuPlace& at);

// `error` with what failed where in front, where it does not say so itself.
// `operation` is null for an error that none has met.
std::exception_ptr explained(const std::exception_ptr& error,
                             const Operation* operation, const GpuPlace& at);

// Whether `error` is news of another rank's, which all have from the group of
// the CPU. What NCCL says of a rank that is gone is less than that group knows:
// then `error` becomes what it says.
bool came_from(Backend& control, std::exception_ptr& error);

}  // namespace lockstep

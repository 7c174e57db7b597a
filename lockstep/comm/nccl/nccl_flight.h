// An operation on its way through a GPU, with a copy of what it borrows.
//
// Threads: what is not const is the backend's, under its lock.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "lockstep/base/deadline.h"
#include "lockstep/comm/nccl/call_check.h"
#include "lockstep/comm/nccl/gpu.h"
#include "lockstep/comm/operation.h"

namespace lockstep {

struct NcclFlight {
  NcclFlight(const Operation& given, const Gpu& gpu);
  NcclFlight(const NcclFlight&) = delete;
  NcclFlight& operator=(const NcclFlight&) = delete;

  LockstepGpuStream* caller() const {
    return static_cast<LockstepGpuStream*>(operation.stream);
  }

  std::vector<Buffer> inputs;
  std::vector<Buffer> outputs;
  std::string place;
  Operation operation;
  const Deadline::Clock::time_point begun = Deadline::Clock::now();
  const Deadline deadline;
  std::uint64_t ticket = 0;

  GpuEvent begins;  // when the caller's stream has come to it
  GpuEvent ends;    // recorded once it is launched
  bool launched = false;
  std::optional<CallCheck> check;  // of collectives of several ranks
};

}  // namespace lockstep

// An operation on its way through a GPU, with a copy of what it borrows.
//
// Threads: what is not const is the backend's, under its lock.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "lockstep/base/deadline.h"
#include "lockstep/comm/captured_graph.h"
#include "lockstep/comm/nccl/call_check.h"
#include "lockstep/comm/nccl/gpu.h"
#include "lockstep/comm/operation.h"

namespace lockstep {

struct NcclFlight {
  NcclFlight(const Operation& given, const Gpu& its_gpu);
  NcclFlight(const NcclFlight&) = delete;
  NcclFlight& operator=(const NcclFlight&) = delete;

  // Where it was started.
  LockstepGpuStream* caller() const {
    return static_cast<LockstepGpuStream*>(operation.stream);
  }
  // Lets that stream wait until it has ended and, if the operation named none,
  // the calling thread's own. To be called once it is launched.
  void hold_up_caller() const;

  std::vector<Buffer> inputs;
  std::vector<Buffer> outputs;
  std::string place;
  Operation operation;  // with a stream
  const bool names_stream;
  const Gpu gpu;
  const std::shared_ptr<CapturedGraph> graph;  // a replay's
  const Deadline::Clock::time_point begun = Deadline::Clock::now();
  const Deadline deadline;
  std::uint64_t ticket = 0;

  // Which the caller's stream is in; 0: the operation is carried out.
  std::uint64_t capture = 0;
  GpuEvent begins;  // when the caller's stream has come to it
  GpuEvent ends;    // recorded once it is launched
  bool launched = false;
  bool behind_capture = false;     // waits until one of the line's stream ends
  std::optional<CallCheck> check;  // of collectives of several ranks
};

}  // namespace lockstep

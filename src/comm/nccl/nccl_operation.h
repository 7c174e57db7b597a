// A pending operation on a GPU, with a copy of the lists that it borrows.
//
// Threads: members that are not const are guarded by the backend's lock.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "lockstep/base/deadline.h"
#include "src/comm/nccl/call_check.h"
#include "src/comm/nccl/gpu.h"
#include "src/comm/operation/captured_graph.h"
#include "src/comm/operation/operation.h"

namespace lockstep {

struct NcclOperation {
  NcclOperation(const Operation& given, const Gpu& its_gpu);
  NcclOperation(const NcclOperation&) = delete;
  NcclOperation& operator=(const NcclOperation&) = delete;

  // The stream that it was started with.
  LockstepGpuStream* caller() const {
    return static_cast<LockstepGpuStream*>(operation.stream);
  }
  // Makes that stream wait for the operation's end and, if the operation named
  // no stream, the calling thread's stream too. Call it once the operation is
  // launched.
  void hold_up_caller() const;

  std::vector<Buffer> inputs;
  std::vector<Buffer> outputs;
  std::string label;
  Operation operation;  // with a stream
  const bool names_stream;
  const Gpu gpu;
  const std::shared_ptr<CapturedGraph> graph;  // a replay's
  const Deadline::Clock::time_point begun = Deadline::Clock::now();
  const Deadline deadline;
  std::uint64_t ticket = 0;

  // The capture of the caller's stream; 0: not captured, the operation runs.
  std::uint64_t capture = 0;
  GpuEvent begins;  // when the caller's stream has reached it
  GpuEvent ends;    // recorded once it is launched
  bool launched = false;
  bool behind_capture = false;     // waits for a capture of the line's stream
  std::optional<CallCheck> check;  // of collectives of several ranks
};

}  // namespace lockstep

// Operations that wait to be launched on a line.
//
// NCCL may accept calls and launch them later, after it has connected the
// ranks. Until then the line takes no other calls, and the event that marks
// their end cannot be recorded. No thread waits for that: threads with spare
// time call advance().
//
// A captured operation takes the line's stream into the capture. Until the
// capture ends, any other operation on the stream would be captured too: it
// waits, and captured operations overtake it.
//
// Threads: one thread at a time.
// Errors:  those of GpuCommunicator, for example once NCCL has lost a rank.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <utility>

#include "src/comm/nccl/gpu.h"
#include "src/comm/nccl/gpu_memory.h"
#include "src/comm/nccl/nccl_operation.h"

namespace lockstep {

class LaunchQueue {
 public:
  // For a line of `size` ranks, where this rank is `rank`. Registers new memory
  // of `memory` (may be null) with the line.
  LaunchQueue(int rank, int size, std::shared_ptr<GpuMemory> memory = nullptr)
      : rank_(rank), size_(size), memory_(std::move(memory)) {}

  void set_line(std::unique_ptr<GpuCommunicator> line) {
    line_ = std::move(line);
  }

  void push(std::shared_ptr<NcclOperation> pending) {
    queue_.push_back(std::move(pending));
  }

  // Launches as much as possible.
  void advance();

  // Null before set_line().
  GpuCommunicator* line() const { return line_.get(); }

 private:
  void note_capture();
  bool is_full();
  void give(NcclOperation& pending);
  void note_launch(NcclOperation& pending);

  const int rank_;
  const int size_;
  const std::shared_ptr<GpuMemory> memory_;
  std::unique_ptr<GpuCommunicator> line_;
  // The most operations under way on the device. The device blocks a thread
  // that gives it more than about a thousand tasks (an operation is a few), and
  // that thread holds the group's lock.
  static constexpr std::size_t kMostUnderWay = 128;

  std::deque<std::shared_ptr<NcclOperation>> queue_;
  // Launched operations; completed ones have no other owner and expire.
  std::deque<std::weak_ptr<NcclOperation>> under_way_;
  bool first_given_ = false;   // the line has its calls
  std::uint64_t capture_ = 0;  // the last capture of the line's stream
};

}  // namespace lockstep

// Operations that wait their turn to be launched on a line.
//
// NCCL may take calls and launch them later, when it has connected ranks that
// must come first. Until then the line takes no others, and the event that says
// when they are done cannot be recorded. Nobody waits for that: whoever has
// time calls advance().
//
// What is captured takes the line's stream into the capture. Until that ends,
// whatever else the stream is given would be captured too: that waits, and what
// is captured overtakes it.
//
// Threads: one at a time.
// Errors:  what GpuLine throws, and so once NCCL has lost a rank.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <utility>

#include "lockstep/comm/nccl/gpu.h"
#include "lockstep/comm/nccl/gpu_memory.h"
#include "lockstep/comm/nccl/nccl_flight.h"

namespace lockstep {

class LaunchQueue {
 public:
  // On a line of `size` ranks, of which this one is `rank`. What is new in
  // `memory` is registered there, if any is given.
  LaunchQueue(int rank, int size, std::shared_ptr<GpuMemory> memory = nullptr)
      : rank_(rank), size_(size), memory_(std::move(memory)) {}

  void set_line(std::unique_ptr<GpuLine> line) { line_ = std::move(line); }

  void push(std::shared_ptr<NcclFlight> flight) {
    queue_.push_back(std::move(flight));
  }

  // Goes as far as possible.
  void advance();

  // Null where there is none yet.
  GpuLine* line() const { return line_.get(); }

 private:
  void note_capture();
  bool is_full();
  void give(NcclFlight& flight);
  void note_launch(NcclFlight& flight);

  const int rank_;
  const int size_;
  const std::shared_ptr<GpuMemory> memory_;
  std::unique_ptr<GpuLine> line_;
  // What the device is given at most before some of it is done. It keeps who
  // gives it more than about a thousand things, an operation being a few: here
  // with the group's lock.
  static constexpr std::size_t kMostUnderWay = 128;

  std::deque<std::shared_ptr<NcclFlight>> queue_;
  // Launched; those that are done, nobody has any more.
  std::deque<std::weak_ptr<NcclFlight>> under_way_;
  bool first_given_ = false;   // the line has its calls
  std::uint64_t capture_ = 0;  // which the line's stream was in last
};

}  // namespace lockstep

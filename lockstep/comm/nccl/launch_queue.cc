#include "lockstep/comm/nccl/launch_queue.h"

#include <algorithm>
#include <utility>

#include "lockstep/comm/nccl/nccl_calls.h"

namespace lockstep {

void LaunchQueue::advance() {
  while (line_ && line_->is_ready() && !queue_.empty()) {
    if (first_given_) {
      note_launch(*queue_.front());
      queue_.pop_front();
      first_given_ = false;
      continue;
    }
    const auto next = std::ranges::find_if(
        queue_, [&](const auto& flight) { return may_be_given(*flight); });
    if (next == queue_.end()) return;
    std::rotate(queue_.begin(), next, next + 1);
    give(*queue_.front());
    first_given_ = true;
  }
}

// Not what is of no capture, or of another, into the line's.
bool LaunchQueue::may_be_given(const NcclFlight& flight) {
  if (capture_ != 0 && capture_ != flight.capture)
    capture_ = flight.gpu.capture_of(line_->stream());
  return capture_ == 0 || capture_ == flight.capture;
}

// Behind what the caller's stream was given before the operation.
void LaunchQueue::give(NcclFlight& flight) {
  if (memory_) memory_->register_new(flight.gpu, *line_);
  flight.begins.hold_up(line_->stream());
  capture_ = flight.capture;
  if (flight.graph)
    flight.graph->launch(line_->stream());
  else if (is_point_to_point(flight.operation.kind))
    issue_message(flight.operation, *line_);
  else
    issue_collective(flight.operation, rank_, size_, *line_);
}

void LaunchQueue::note_launch(NcclFlight& flight) {
  flight.ends.record(line_->stream());
  flight.launched = true;
}

}  // namespace lockstep

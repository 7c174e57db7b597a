#include "lockstep/comm/nccl/launch_queue.h"

#include <utility>

#include "lockstep/comm/nccl/nccl_calls.h"

namespace lockstep {

void LaunchQueue::advance() {
  while (line_ && line_->is_ready() && !queue_.empty()) {
    if (first_given_) {
      note_launch(*queue_.front());
      queue_.pop_front();
      first_given_ = false;
    } else {
      give(*queue_.front());
      first_given_ = true;
    }
  }
}

// Behind what the caller's stream was given before the operation.
void LaunchQueue::give(NcclFlight& flight) {
  if (memory_) memory_->register_new(flight.gpu, *line_);
  flight.begins.hold_up(line_->stream());
  if (is_point_to_point(flight.operation.kind))
    issue_message(flight.operation, *line_);
  else
    issue_collective(flight.operation, rank_, size_, *line_);
}

void LaunchQueue::note_launch(NcclFlight& flight) {
  flight.ends.record(line_->stream());
  flight.launched = true;
}

}  // namespace lockstep
